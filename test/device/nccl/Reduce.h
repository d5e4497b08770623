//===- Reduce.h - Arithmetic of reductions ----------------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_NCCL_REDUCE_H
#define MGQ_TEST_DEVICE_NCCL_REDUCE_H

#include <cstddef>
#include <nccl.h>
#include <vector>

namespace mgq::device {

bool canReduce(ncclDataType_t type, ncclRedOp_t reduction);

/// to[i] = parts[0][i] op parts[1][i] op ..., in this order; halves in float,
/// rounded once.
void reduce(void *to, const std::vector<const void *> &parts, size_t count,
            ncclDataType_t type, ncclRedOp_t reduction);

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_NCCL_REDUCE_H
