//===- Reducer.h - Sums over replicas ------------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_COMMON_REDUCER_H
#define MGQ_RUNTIME_COMMON_REDUCER_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Group.h"
#include "runtime/src/common/Program.h"

namespace mgq::rt {

/// Adds values of the same stage in all replicas. Work is cut into rounds that
/// fit the rank's exchange room; in a round each replica owns a shard, gets the
/// others' values of it, adds them in the order of replicas and sends the sums
/// back. So every element is ((v0 + v1) + v2) + ..., however it is cut.
class Reducer {
public:
  /// Throws Error if an op needs room and there is none.
  Reducer(const RankView &view, Arena &arena, Group &group);

  /// Sums f32 values in place. Allocates nothing. Returns the bytes sent.
  int64_t allReduce(std::byte *place, int64_t bytes);

private:
  int64_t reduceRound(float *values, int64_t count);
  void addShards(float *own, int64_t count);

  const RankView &view;
  Group &group;
  std::byte *room;
  int64_t shardElements = 0; ///< At most, in a round.
  std::vector<int64_t> requests;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_REDUCER_H
