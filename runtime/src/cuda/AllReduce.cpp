//===- AllReduce.cpp - Sums over replicas on GPUs -------------------------===//
//
// As on the host (SumRounds): shards go to their owners, which add them in the
// order of replicas and send the sums back. So bits do not depend on how NCCL
// would sum. All is enqueued on the stream of the replicas' link.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/cuda/AllReduce.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/cuda/CudaDevice.h"
#include "runtime/src/cuda/Network.h"

using namespace mgq::rt;

void DeviceSum::begin() {
  setReady();
  isReady = true;
  all.advance();
}

void DeviceSum::enqueue(Link &link) {
  isReady = false;
  enqueueOn(link, [&] { exchange(link); });
}

namespace {
class DenseSum : public DeviceSum {
public:
  DenseSum(DeviceSums &all, CudaDevice &device, const RankView &view,
           const Bucket &bucket)
      : DeviceSum(all, device), view(view), bucket(bucket),
        rounds(bucket, view.program.replicas) {}

  void exchange(Link &link) override;

private:
  void scatter(Link &link, float *round);
  void addShards(CUstream stream, float *own);
  void gather(Link &link, float *round);

  const RankView &view;
  Bucket bucket;
  SumRounds rounds;
};
} // namespace

void DenseSum::scatter(Link &link, float *round) {
  int32_t me = view.replica;
  auto *to = reinterpret_cast<float *>(bucket.room);
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    if (int64_t size = rounds.sizeOf(me))
      link.communicator.receive(to, size, ncclFloat32, r, link.stream);
    if (int64_t size = rounds.sizeOf(r))
      link.communicator.send(round + rounds.beginOf(r), size, ncclFloat32, r,
                             link.stream);
    to += SumRounds::wholeLines(rounds.sizeOf(me));
    sent += rounds.sizeOf(r) * 4;
  }
}

/// Sums of the own shard, in the order of replicas, to `own`.
void DenseSum::addShards(CUstream stream, float *own) {
  int64_t size = rounds.sizeOf(view.replica);
  if (!size)
    return;
  auto *shards = reinterpret_cast<float *>(bucket.room);
  int64_t stride = SumRounds::wholeLines(size);
  auto add = [&](float *sum, const float *values) {
    view.program.accumulate(sum, values, size);
  };
  CUstream before = device.enqueueOn(stream);
  if (view.replica > 0) {
    for (int32_t r = 1; r < view.replica; ++r)
      add(shards, shards + r * stride);
    add(shards, own);
    device.copy(own, shards, size * 4);
  }
  for (int32_t r = view.replica + 1; r < view.program.replicas; ++r)
    add(own, shards + (r - 1) * stride);
  device.enqueueOn(before);
  device.leaveCall("a sum over replicas");
}

void DenseSum::gather(Link &link, float *round) {
  int32_t me = view.replica;
  for (int32_t r = 0; r < view.program.replicas; ++r) {
    if (r == me)
      continue;
    if (int64_t size = rounds.sizeOf(r))
      link.communicator.receive(round + rounds.beginOf(r), size, ncclFloat32, r,
                                link.stream);
    if (int64_t size = rounds.sizeOf(me))
      link.communicator.send(round + rounds.beginOf(me), size, ncclFloat32, r,
                             link.stream);
    sent += rounds.sizeOf(me) * 4;
  }
}

void DenseSum::exchange(Link &link) {
  for (int64_t at = 0; at < rounds.count; at += rounds.size) {
    rounds.start(rounds.count - at);
    float *round = bucket.values + at;
    link.communicator.beginGroup();
    scatter(link, round);
    link.communicator.endGroup();
    addShards(link.stream, round + rounds.beginOf(view.replica));
    link.communicator.beginGroup();
    gather(link, round);
    link.communicator.endGroup();
  }
}

std::unique_ptr<DeviceSum> mgq::rt::makeDenseSum(DeviceSums &all,
                                                 CudaDevice &device,
                                                 const RankView &view,
                                                 const Bucket &bucket) {
  return std::make_unique<DenseSum>(all, device, view, bucket);
}

void DeviceSums::advance() {
  network.run([&] {
    while (next < sums.size() && sums[next]->isReady)
      sums[next++]->enqueue(network.replicas());
  });
  if (next == sums.size())
    next = 0;
}

std::unique_ptr<Collective>
DeviceSums::add(const RankView &view, const Bucket &bucket,
                const CompressedGradients *compressed) {
  auto *its = compressed ? compressed->find(*bucket.op) : nullptr;
  std::unique_ptr<DeviceSum> sum =
      its ? makeCompressedSum(*this, device, view, *compressed, *its, bucket)
          : makeDenseSum(*this, device, view, bucket);
  sums.push_back(sum.get());
  return sum;
}
