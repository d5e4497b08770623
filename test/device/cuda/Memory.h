//===- Memory.h - Device memory and its shadow ------------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_CUDA_MEMORY_H
#define MGQ_TEST_DEVICE_CUDA_MEMORY_H

#include "test/device/cuda/Report.h"
#include "test/device/twin/Twin.h"
#include <cstdint>
#include <string>
#include <vector>

namespace mgq::device {

/// Clocks of streams: entry s counts the operations of stream s that have
/// happened before.
using Clock = std::vector<uint32_t>;
void join(Clock &clock, const Clock &with);

/// What an operation on a stream is, for those who find its traces.
struct OperationTrace {
  uint32_t stream;
  uint32_t time; ///< On its stream.
  std::string name;
};

/// Enters an operation; returns its number, from 1.
uint32_t traceOperation(OperationTrace trace);

/// From here on touch() speaks for this operation (0: none). The caller holds
/// the execution lock.
void beginOperation(uint32_t number, const Clock *clock);

/// Enters an access by the running operation, and reports races between
/// streams and reads of memory never written. Returns what is wrong with the
/// place, "" if nothing: "8 bytes at ..., out of bounds".
MGQ_DEVICE_EXPORT std::string touch(const void *address, int64_t bytes,
                                    mgq_twin_access_kind kind,
                                    bool needsWritten = true);

/// From here on reads of memory never written are not reported: there are
/// kernels whose writes are not seen.
void ignoreUnwritten();

/// Copies what is known of initialisation along with the bytes.
void copyWritten(const void *to, const void *from, int64_t bytes);

/// "byte 16 of device memory 2 (of 4096 bytes)".
MGQ_DEVICE_EXPORT std::string describeAddress(const void *address);

/// Device memory; null if the device has too little left.
void *allocate(int device, int64_t bytes);
/// False: there is no such allocation. Its addresses are not used again.
bool release(void *address);
/// Variables of a loaded module.
void addVariable(void *address, int64_t bytes, const std::string &name);
void removeVariable(void *address);
int64_t freeBytes(int device);
/// The allocation that holds `address`; false: none.
bool findAllocation(const void *address, void **base, int64_t *bytes,
                    int *device);

/// Page-locked host memory.
void addPinned(const void *address, int64_t bytes);
bool removePinned(const void *address);
bool isPinned(const void *address, int64_t bytes);

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_CUDA_MEMORY_H
