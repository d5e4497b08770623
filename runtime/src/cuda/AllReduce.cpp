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

class DeviceSums::Sum : public Collective {
public:
  Sum(DeviceSums &all, const RankView &view, const Bucket &bucket)
      : all(all), view(view), bucket(bucket),
        rounds(bucket, view.program.replicas), done(all.device.timeFlags()) {
    if (all.device.timesMessages())
      began.emplace(all.device.timeFlags());
  }

  /// What it sums is there when all that is enqueued to compute so far is done.
  void begin() override {
    ready.record(all.device.stream());
    isReady = true;
    all.advance();
  }
  bool advance() override { return true; }
  const std::vector<int64_t> &requests() const override { return none; }
  int64_t sentBytes() const override { return sent; }
  void join() override { done.before(all.device.stream()); }
  mgq_span span() override {
    if (!began || !std::exchange(isFresh, false))
      return {-1, -1};
    return all.device.spanOf(*began, done);
  }

private:
  friend class DeviceSums;
  void enqueue();
  void scatter(Link &link, float *round);
  void addShards(CUstream stream, float *own);
  void gather(Link &link, float *round);

  DeviceSums &all;
  const RankView &view;
  Bucket bucket;
  SumRounds rounds;
  Event ready, done;
  std::optional<Event> began; ///< Where times are asked for.
  bool isReady = false, isFresh = false;
  int64_t sent = 0;
  std::vector<int64_t> none;
};

void DeviceSums::Sum::scatter(Link &link, float *round) {
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
void DeviceSums::Sum::addShards(CUstream stream, float *own) {
  int64_t size = rounds.sizeOf(view.replica);
  if (!size)
    return;
  auto *shards = reinterpret_cast<float *>(bucket.room);
  int64_t stride = SumRounds::wholeLines(size);
  auto add = [&](float *sum, const float *values) {
    view.program.accumulate(sum, values, size);
  };
  CUstream before = all.device.enqueueOn(stream);
  if (view.replica > 0) {
    for (int32_t r = 1; r < view.replica; ++r)
      add(shards, shards + r * stride);
    add(shards, own);
    all.device.copy(own, shards, size * 4);
  }
  for (int32_t r = view.replica + 1; r < view.program.replicas; ++r)
    add(own, shards + (r - 1) * stride);
  all.device.enqueueOn(before);
  all.device.leaveCall("a sum over replicas");
}

void DeviceSums::Sum::gather(Link &link, float *round) {
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

void DeviceSums::Sum::enqueue() {
  isReady = false;
  Link &link = all.network.replicas();
  ready.before(link.stream);
  if (began)
    began->record(link.stream);
  isFresh = true;
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
  done.record(link.stream);
}

void DeviceSums::advance() {
  network.run([&] {
    while (next < sums.size() && sums[next]->isReady)
      sums[next++]->enqueue();
  });
  if (next == sums.size())
    next = 0;
}

std::unique_ptr<Collective> DeviceSums::add(const RankView &view,
                                            const Bucket &bucket) {
  auto sum = std::make_unique<Sum>(*this, view, bucket);
  sums.push_back(sum.get());
  return sum;
}
