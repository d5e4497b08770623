//===- LinkTest.cpp - Artificial links ------------------------------------===//

#include "runtime/src/common/Group.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/local/LinkTransport.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/AllocationCount.h"
#include "test/runtime/TestFiles.h"
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <gtest/gtest.h>
#include <thread>

using namespace mgq::rt;
using namespace test;

/// Runs `body` on each rank of a group of threads that such links join.
static void runRanks(int ranks, int stages, const LinkModel &link,
                     const std::function<void(Group &)> &body) {
  ThreadTransport transport(ranks, 20);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      LinkTransport linked(transport.end(rank), link, stages);
      Group group(linked.table());
      body(group);
    });
  for (std::thread &thread : threads)
    thread.join();
}

/// CPU time of this thread, in seconds.
static double cpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

// start = max(now, link free), free = start + bytes / bandwidth, arrival = free
// + delay: by the spans, and by the clock.
TEST(Link, QueuesMessages) {
  runRanks(2, 2, {0.02, 1e5, false}, [](Group &group) {
    char bytes[3][1000] = {};
    int64_t requests[3];
    mgq_span spans[3];
    double begun = secondsNow();
    for (int i = 0; i < 3; ++i)
      requests[i] = group.rank() == 0 ? group.send(bytes[i], 1000, 1, i)
                                      : group.receive(bytes[i], 1000, 0, i);
    double cpu = cpuSeconds();
    for (int i = 0; i < 3; ++i)
      group.wait(requests[i], &spans[i]);
    double ended = secondsNow();
    EXPECT_LT(cpuSeconds() - cpu, 0.5 * (ended - begun));
    double own = group.rank() == 0 ? 0.01 : 0.03;
    for (int i = 0; i < 3; ++i)
      EXPECT_NEAR(spans[i].end - spans[i].begin, own, 1e-9) << i;
    for (int i = 1; i < 3; ++i)
      EXPECT_GE(spans[i].begin, spans[i - 1].begin + 0.01 - 1e-9) << i;
    EXPECT_GE(ended, spans[2].end);
  });
}

// Each direction is a link of its own.
TEST(Link, DirectionsAreIndependent) {
  runRanks(2, 2, {0, 1e5, false}, [](Group &group) {
    char out[5000] = {}, in[5000];
    group.allGather(0);
    int64_t receive = group.receive(in, 5000, 1 - group.rank(), 1);
    int64_t send = group.send(out, 5000, 1 - group.rank(), 1);
    mgq_span sent, got;
    group.wait(send, &sent);
    group.wait(receive, &got);
    EXPECT_LT(got.begin, sent.end);
  });
}

TEST(Link, TestAndWaitAnySeeArrivals) {
  runRanks(2, 2, {0.03, 0, false}, [](Group &group) {
    int value = 7, got = 0;
    if (group.rank() == 0)
      return group.sendNow(&value, 4, 1, 1);
    int64_t request = group.receive(&got, 4, 0, 1), never = -1;
    int other = 0;
    never = group.receive(&other, 4, 1, 2); // From itself, later.
    mgq_span span;
    while (!group.test(request, &span))
      group.waitAny({never, request});
    EXPECT_GE(secondsNow(), span.end);
    EXPECT_EQ(got, 7);
    group.sendNow(&value, 4, 1, 2);
    group.wait(never);
    EXPECT_EQ(other, 7);
  });
}

// Ranks 0 and 1 are one replica, 2 and 3 the other: at a byte per second the
// first exchange would not end.
TEST(Link, MayJoinReplicasOnly) {
  runRanks(4, 2, {0.02, 1, true}, [](Group &group) {
    char bytes[4000] = {};
    int32_t peer = group.rank() ^ 1, replica = group.rank() ^ 2;
    int64_t receive = group.receive(bytes, 4000, peer, 1);
    char mine[4000] = {};
    group.sendNow(mine, 4000, peer, 1);
    group.wait(receive);
    mgq_span span;
    receive = group.receive(bytes, 0, replica, 2);
    group.sendNow(mine, 0, replica, 2);
    group.wait(receive, &span);
    EXPECT_NEAR(span.end - span.begin, 0.02, 1e-9);
  });
}

TEST(Link, AbortReachesSleepers) {
  runRanks(2, 2, {100, 0, false}, [](Group &group) {
    char byte = 0;
    if (group.rank() == 1) {
      group.send(&byte, 1, 0, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group.abort("rank 1: out of ideas");
      return;
    }
    EXPECT_EQ(errorOf([&] { group.receiveNow(&byte, 1, 1, 1); }),
              "rank 1: out of ideas");
  });
}

TEST(Link, AllocatesNothingInSteadyState) {
  std::atomic<long> before{0}, after{0};
  runRanks(2, 2, {1e-5, 1e9, false}, [&](Group &group) {
    double value = 1, got[2];
    std::vector<int64_t> both(2);
    for (int round = 0; round < 100; ++round) {
      if (round == 20 && group.rank() == 0)
        before = allocationCount();
      both[0] = group.receive(got, 8, 1 - group.rank(), 3);
      both[1] = group.send(&value, 8, 1 - group.rank(), 3);
      group.waitAny(both);
      group.wait(both[1]);
      group.wait(both[0]);
      group.allGather(&value, 8, got);
      if (round == 90 && group.rank() == 0)
        after = allocationCount();
    }
  });
  EXPECT_EQ(before, after);
}

TEST(Link, ReadsItsEnvironment) {
  auto of = [](const char *text) {
    setenv("MGQ_TEST_LINK", text, 1);
    return linkOfEnvironment();
  };
  EXPECT_FALSE(of(""));
  auto link = of("delay=1e-3,bandwidth=1.25e8,replicas-only");
  EXPECT_EQ(link->delay, 1e-3);
  EXPECT_EQ(link->bandwidth, 1.25e8);
  EXPECT_TRUE(link->replicasOnly);
  EXPECT_EQ(errorOf([&] { of("delay=-1"); }),
            "usage: MGQ_TEST_LINK is 'delay=-1': '-1' is not a number from 0");
  EXPECT_EQ(errorOf([&] { of("delay=1x"); }),
            "usage: MGQ_TEST_LINK is 'delay=1x': '1x' is not a number from 0");
  EXPECT_EQ(errorOf([&] { of("fast"); }),
            "usage: MGQ_TEST_LINK is 'fast', expected delay=SECONDS, "
            "bandwidth=BYTES_PER_SECOND and replicas-only, with commas");
  unsetenv("MGQ_TEST_LINK");
}
