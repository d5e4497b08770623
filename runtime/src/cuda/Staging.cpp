//===- Staging.cpp - From the host to a device ----------------------------===//

#include "runtime/src/cuda/Staging.h"
#include <algorithm>

using namespace mgq::rt;

static constexpr int64_t leastRing = int64_t{16} << 20;
// As many copies as may be on their way.
static constexpr size_t mostOpen = 256;

PinnedMemory::PinnedMemory(int64_t bytes) {
  cuCall(cuMemHostAlloc, &memory,
         static_cast<size_t>(std::max<int64_t>(bytes, 1)), 0);
}

Staging::Staging(CUstream stream, std::function<void(CUevent)> wait)
    : stream(stream), wait(std::move(wait)), writes(mostOpen) {}

void Staging::finishOldest() {
  wait(writes[oldest % mostOpen].copied);
  ++oldest;
}

bool Staging::isFree(int64_t from, int64_t to) const {
  for (size_t i = oldest; i != newest; ++i) {
    const Write &one = writes[i % mostOpen];
    if (one.begin < to && from < one.end)
      return false;
  }
  return true;
}

void Staging::reserve(int64_t bytes) {
  if (4 * bytes <= size && ring)
    return;
  while (oldest != newest)
    finishOldest();
  size = std::max(4 * bytes, leastRing);
  ring.reset();
  ring = std::make_unique<PinnedMemory>(size);
  next = 0;
}

std::byte *Staging::begin(int64_t bytes) {
  reserve(bytes);
  if (next + bytes > size)
    next = 0;
  while (newest - oldest == mostOpen || !isFree(next, next + bytes))
    finishOldest();
  first = next;
  count = bytes;
  next += (bytes + 63) / 64 * 64;
  return ring->data() + first;
}

void Staging::end(CUdeviceptr to) {
  if (!count)
    return;
  cuCall(cuMemcpyHtoDAsync, to, ring->data() + first,
         static_cast<size_t>(count), stream);
  Write &write = writes[newest++ % mostOpen];
  write.begin = first;
  write.end = first + count;
  write.copied.record(stream);
}
