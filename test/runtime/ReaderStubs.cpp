//===- ReaderStubs.cpp - What tests of readers do not link ----------------===//

#include "runtime/include/rt.h"
#include "test/runtime/AllocationCount.h"
#include <cstdlib>

/// Under sanitizers malloc is theirs.
long allocationCount() { return 0; }

/// The toy's kernels name it; reading files runs no kernel.
extern "C" void mgq_index_error(const char *, int64_t, int64_t) { abort(); }
