//===- ReducerTest.cpp - Sums over replicas -------------------------------===//

#include "runtime/src/common/Reducer.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/ToyModel.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <thread>

using namespace mgq::rt;

/// Values of a replica that do not add up to the same in any order.
static std::vector<float> valuesOf(int replica, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(replica) + 1);
  std::vector<float> values(count);
  for (float &value : values)
    value = std::ldexp(static_cast<float>(random() % 2001) - 1000.0f,
                       static_cast<int>(random() % 20));
  return values;
}

/// Reduces `count` values of `replicas` replicas with room for `roomBytes`;
/// each must get the bits of ((v0 + v1) + v2) + ....
static void check(int replicas, int64_t count, int64_t roomBytes) {
  mgq_op op = {};
  op.kind = MGQ_OP_ALL_REDUCE;
  op.bytes = count * 4;
  mgq_rank rank = {};
  rank.ops = &op;
  rank.op_count = 1;
  rank.exchange_bytes = roomBytes;
  rank.exchange_offset = (count * 4 + 63) / 64 * 64;
  rank.arena_bytes = rank.exchange_offset + roomBytes;
  mgq_program program = {};
  program.stages = 1;
  program.replicas = replicas;
  program.ranks = &rank;
  program.accumulate = toy::accumulate;
  std::vector<float> expected = valuesOf(0, count);
  for (int replica = 1; replica < replicas; ++replica)
    toy::accumulate(expected.data(), valuesOf(replica, count).data(), count);

  ThreadTransport transport(replicas, 20);
  std::vector<std::thread> threads;
  for (int replica = 0; replica < replicas; ++replica)
    threads.emplace_back([&, replica] {
      Group group(transport.end(replica));
      RankView view(program, replica);
      Arena arena(rank.arena_bytes);
      Reducer reducer(view, arena, group);
      std::vector<float> values = valuesOf(replica, count);
      memcpy(arena.at(0), values.data(), count * 4);
      int64_t sent = reducer.allReduce(arena.at(0), count * 4);
      EXPECT_EQ(memcmp(arena.at(0), expected.data(), count * 4), 0)
          << replicas << " replicas, " << count << " values, " << roomBytes;
      // Each value goes out once and comes back to all others.
      EXPECT_LE(sent, (2 * count + 32 * replicas) * 4 * (replicas - 1));
    });
  for (std::thread &thread : threads)
    thread.join();
}

TEST(Reducer, AddsInTheOrderOfReplicas) {
  for (int replicas : {1, 2, 3, 4, 5})
    for (int64_t count : {1, 15, 16, 17, 100, 1000, 200000})
      for (int64_t room : {64 * 4, 64 * 20, 1 << 20})
        if (count < 10000 || room > 4000)
          check(replicas, count, room);
}

// A stage that owns no trained parameter has nothing to reduce.
TEST(Reducer, NeedsRoomForWhatItReduces) {
  mgq_op op = {};
  op.kind = MGQ_OP_ALL_REDUCE;
  op.bytes = 4;
  mgq_rank rank = {};
  rank.ops = &op;
  rank.op_count = 1;
  rank.exchange_bytes = 64;
  mgq_program program = {};
  program.stages = 1;
  program.replicas = 3;
  program.ranks = &rank;
  ThreadTransport transport(3, 20);
  Group group(transport.end(0));
  RankView view(program, 0);
  Arena arena(1024);
  EXPECT_THROW(Reducer(view, arena, group), Error);
  op.bytes = 0;
  rank.exchange_bytes = 0;
  EXPECT_EQ(Reducer(view, arena, group).allReduce(arena.at(0), 0), 0);
}
