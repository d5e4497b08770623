//===- ReducerTest.cpp - Sums over replicas -------------------------------===//

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Collective.h"
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
  op.room_bytes = roomBytes;
  int64_t roomOffset = (count * 4 + 63) / 64 * 64;
  mgq_rank rank = {};
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
      Arena arena(roomOffset + roomBytes);
      auto *values = reinterpret_cast<float *>(arena.at(0));
      HiddenTime times(1000, 0);
      auto sum = makeDenseAllReduce(
          view, {&op, values, arena.at(roomOffset), TagReduce}, group, &times);
      // Used again in each step.
      for (int step = 0; step < 2; ++step) {
        std::vector<float> mine = valuesOf(replica, count);
        memcpy(values, mine.data(), count * 4);
        sum->begin();
        while (!sum->advance())
          group.waitAny(sum->requests());
      }
      int64_t sent = sum->sentBytes() / 2;
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
  op.room_bytes = 64;
  mgq_rank rank = {};
  mgq_program program = {};
  program.stages = 1;
  program.replicas = 3;
  program.ranks = &rank;
  ThreadTransport transport(3, 20);
  Group group(transport.end(0));
  RankView view(program, 0);
  std::vector<std::byte> room(64);
  float value = 1;
  Bucket bucket = {&op, &value, room.data(), TagReduce};
  EXPECT_THROW(makeDenseAllReduce(view, bucket, group, nullptr), Error);
  op.bytes = op.room_bytes = 0;
  auto nothing = makeDenseAllReduce(view, bucket, group, nullptr);
  nothing->begin();
  EXPECT_TRUE(nothing->advance());
  EXPECT_EQ(nothing->sentBytes(), 0);
}

// All get the slices of all, in their order; how long that takes is told.
TEST(Reducer, GathersSlices) {
  constexpr int32_t members = 3, size = 64;
  mgq_op op = {};
  op.kind = MGQ_OP_ALL_GATHER;
  op.bytes = members * size;
  op.room_bytes = size;
  mgq_rank rank = {};
  mgq_program program = {};
  program.stages = 1;
  program.replicas = members;
  program.ranks = &rank;
  ThreadTransport transport(members, 20);
  std::vector<std::thread> threads;
  for (int member = 0; member < members; ++member)
    threads.emplace_back([&, member] {
      Group group(transport.end(member));
      RankView view(program, member);
      std::vector<std::byte> slice(size, std::byte(member + 1)), expected;
      std::vector<float> whole(members * size / 4);
      for (int other = 0; other < members; ++other)
        expected.insert(expected.end(), size, std::byte(other + 1));
      HiddenTime times(100, 0);
      times.startStep();
      auto gather = makeShardGather(
          view, {&op, whole.data(), slice.data(), TagShard}, group, &times);
      gather->begin();
      while (!gather->advance())
        group.waitAny(gather->requests());
      times.endStep();
      EXPECT_EQ(memcmp(whole.data(), expected.data(), expected.size()), 0);
      EXPECT_EQ(gather->sentBytes(), (members - 1) * size);
      EXPECT_GT(times.time().total, 0);
    });
  for (std::thread &thread : threads)
    thread.join();
  op.bytes += 1;
  Bucket bucket = {&op, nullptr, reinterpret_cast<std::byte *>(&op), TagShard};
  EXPECT_THROW(checkGather(RankView(program, 0), bucket), Error);
}

// By hand: [1, 3] and [2, 5] are one stretch of 4 s, [7, 8] another of 1 s. The
// rank computes in [0, 2.5], [4, 4.5] and [6, 7.25]: hidden are 1.5 + 0.5 +
// 0.25. The first gradient is there at 0.5, the optimizer begins at 7: it could
// have been 2 + 0.5 + 1 of computation.
TEST(HiddenTime, JoinsMessagesAndComputation) {
  HiddenTime times(8, 8);
  times.startStep();
  times.addMessage({7, 8});
  times.addMessage({1, 3});
  times.addMessage({2, 5});
  times.addMessage({-1, 9}); // Not known.
  times.addBusy(0, 2.5);
  times.gradientReady(0.5);
  times.gradientReady(0.75);
  times.addBusy(4, 4.5);
  times.addBusy(6, 7.25);
  times.optimizerBegins(7);
  times.endStep();
  EXPECT_DOUBLE_EQ(times.time().total, 5);
  EXPECT_DOUBLE_EQ(times.time().hidden, 2.25);
  EXPECT_DOUBLE_EQ(times.time().largest, 3.5);
  times.startStep();
  times.addMessage({1, 2});
  times.addBusy(0, 10);
  times.endStep();
  EXPECT_DOUBLE_EQ(times.time().total, 6);
  EXPECT_DOUBLE_EQ(times.time().hidden, 3.25);
  EXPECT_DOUBLE_EQ(times.time().largest, 4.5);
  times.reset();
  EXPECT_EQ(times.time().total, 0);
}
