//===- ShardGather.cpp - Frozen weights from all GPUs that have slices ----===//
//
//   compute | layer 0 ........ | layer 1 ........ | layer 2
//   gathers | layer 1          | layer 2          | layer 3
//
// A gather waits for what is enqueued to compute before it, where its buffer is
// read for the last time; what is enqueued behind join() waits for it. In
// between both go on.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/cuda/ShardGather.h"
#include "runtime/src/cuda/CudaDevice.h"
#include "runtime/src/cuda/Network.h"
#include <set>

using namespace mgq::rt;

DeviceGather::DeviceGather(CudaDevice &device, Network &network,
                           const RankView &view, const Bucket &bucket)
    : DeviceCollective(device), network(network), slice(bucket.room),
      to(reinterpret_cast<std::byte *>(bucket.values)),
      sliceBytes(bucket.op->room_bytes), others(view.shardMembers() - 1) {
  checkGather(view, bucket);
}

void DeviceGather::begin() {
  Link &link = network.members();
  setReady();
  enqueueOn(link, [&] {
    if (sliceBytes)
      network.run([&] {
        link.communicator.allGather(slice, to, sliceBytes, ncclUint8,
                                    link.stream);
      });
  });
  sent += sliceBytes * others;
}

std::unique_ptr<Collective> DeviceGathers::add(const RankView &view,
                                               const Bucket &bucket) {
  auto gather = std::make_unique<DeviceGather>(device, network, view, bucket);
  gathers.push_back(gather.get());
  return gather;
}

void DeviceGathers::rehearse(const std::function<void(CUevent)> &await) {
  std::set<int64_t> sizes;
  for (DeviceGather *gather : gathers) {
    if (!sizes.insert(gather->sliceBytes).second)
      continue;
    gather->begin();
    gather->join();
    await(gather->done);
    gather->sent = 0;
    gather->isFresh = false;
  }
}
