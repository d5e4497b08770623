//===- ShardGather.cpp - Frozen weights that are spread over ranks --------===//

#include "runtime/src/common/Collective.h"
#include <cstring>

using namespace mgq::rt;

namespace {
class ShardGather : public Collective {
public:
  ShardGather(const RankView &view, const Bucket &bucket, Group &group,
              HiddenTime *times);

  void begin() override;
  bool advance() override { return messages.done(); }
  const std::vector<int64_t> &requests() const override {
    return messages.requests();
  }
  int64_t sentBytes() const override { return messages.sentBytes(); }

private:
  const RankView &view;
  std::byte *to;          ///< All slices.
  const std::byte *slice; ///< This rank's own.
  int64_t sliceBytes;
  int32_t tag;
  MessageSet messages;
};
} // namespace

void mgq::rt::checkGather(const RankView &view, const Bucket &bucket) {
  int64_t slice = bucket.op->room_bytes;
  if (slice < 0 || bucket.op->bytes != slice * view.shardMembers() ||
      (slice && !bucket.room))
    fail("the program's tables are damaged: {} bytes of slices",
         bucket.op->bytes);
}

ShardGather::ShardGather(const RankView &view, const Bucket &bucket,
                         Group &group, HiddenTime *times)
    : view(view), to(reinterpret_cast<std::byte *>(bucket.values)),
      slice(bucket.room), sliceBytes(bucket.op->room_bytes),
      tag(bucket.firstTag), messages(group, 2 * view.shardMembers(), times) {
  checkGather(view, bucket);
}

void ShardGather::begin() {
  for (int32_t member = 0; member < view.shardMembers(); ++member) {
    if (member == view.shardMember())
      continue;
    messages.receive(to + member * sliceBytes, sliceBytes,
                     view.rankOfMember(member), tag);
    messages.send(slice, sliceBytes, view.rankOfMember(member), tag);
  }
  if (sliceBytes)
    memcpy(to + view.shardMember() * sliceBytes, slice, sliceBytes);
}

std::unique_ptr<Collective> mgq::rt::makeShardGather(const RankView &view,
                                                     const Bucket &bucket,
                                                     Group &group,
                                                     HiddenTime *times) {
  return std::make_unique<ShardGather>(view, bucket, group, times);
}
