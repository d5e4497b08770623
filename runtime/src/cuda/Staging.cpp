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
    : stream(stream), wait(std::move(wait)) {
  for (size_t i = 0; i < mostOpen; ++i)
    unused.push_back(&events.emplace_back());
}

void Staging::finishOldest() {
  wait(*open.front().copied);
  unused.push_back(open.front().copied);
  open.pop_front();
}

bool Staging::isFree(int64_t from, int64_t to) const {
  return std::none_of(open.begin(), open.end(), [&](const Open &one) {
    return one.begin < to && from < one.end;
  });
}

void Staging::reserve(int64_t bytes) {
  if (4 * bytes <= size && ring)
    return;
  while (!open.empty())
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
  while (open.size() >= mostOpen || !isFree(next, next + bytes))
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
  Event *copied = unused.back();
  unused.pop_back();
  open.push_back({first, first + count, copied});
  copied->record(stream);
}
