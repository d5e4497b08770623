//===- AllocationCount.h - Counts calls of malloc and friends ---*- C++ -*-===//
#ifndef MGQ_TEST_RUNTIME_ALLOCATIONCOUNT_H
#define MGQ_TEST_RUNTIME_ALLOCATIONCOUNT_H

/// Allocations of this process so far; operator new calls malloc.
long allocationCount();

#endif // MGQ_TEST_RUNTIME_ALLOCATIONCOUNT_H
