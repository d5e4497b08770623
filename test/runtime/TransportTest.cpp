//===- TransportTest.cpp - Messages between threads -----------------------===//

#include "runtime/src/common/Group.h"
#include "runtime/src/local/ThreadTransport.h"
#include "test/runtime/AllocationCount.h"
#include "test/runtime/TestFiles.h"
#include <atomic>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <thread>

using namespace mgq::rt;
using namespace test;
using testing::HasSubstr;

/// Runs `body` on each rank of a group of threads.
static void runRanks(int ranks, const std::function<void(Group &)> &body,
                     double timeout = 20) {
  ThreadTransport transport(ranks, timeout);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Group group(transport.end(rank));
      body(group);
    });
  for (std::thread &thread : threads)
    thread.join();
}

TEST(ThreadTransport, DeliversWhoeverComesFirst) {
  runRanks(2, [](Group &group) {
    for (int round = 0; round < 50; ++round) {
      std::vector<int> sent(1000), got(1000);
      std::iota(sent.begin(), sent.end(), round);
      if (round % 2 == group.rank())
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      int64_t bytes = 4000;
      int32_t peer = 1 - group.rank();
      int64_t receive = group.receive(got.data(), bytes, peer, 7);
      int64_t send = group.send(sent.data(), bytes, peer, 7);
      group.wait(send);
      group.wait(receive);
      ASSERT_EQ(got, sent);
    }
  });
}

// Tags may be waited for in any order; one tag keeps its order.
TEST(ThreadTransport, MatchesTagsInOrder) {
  runRanks(3, [](Group &group) {
    constexpr int tags = 5, each = 4;
    int values[tags][each], got[3][tags][each];
    std::vector<int64_t> requests;
    for (int i = 0; i < each; ++i)
      for (int tag = 0; tag < tags; ++tag) {
        values[tag][i] = 100 * group.rank() + 10 * tag + i;
        for (int peer = 0; peer < 3; ++peer)
          if (peer != group.rank())
            requests.push_back(group.send(&values[tag][i], 4, peer, tag));
      }
    for (int tag = tags; tag-- > 0;)
      for (int i = 0; i < each; ++i)
        for (int peer = 0; peer < 3; ++peer)
          if (peer != group.rank())
            requests.push_back(group.receive(&got[peer][tag][i], 4, peer, tag));
    for (size_t i = requests.size(); i-- > 0;)
      group.wait(requests[i]);
    for (int peer = 0; peer < 3; ++peer)
      for (int tag = 0; tag < tags; ++tag)
        for (int i = 0; i < each && peer != group.rank(); ++i)
          ASSERT_EQ(got[peer][tag][i], 100 * peer + 10 * tag + i);
  });
}

TEST(ThreadTransport, RandomTrafficArrives) {
  runRanks(4, [](Group &group) {
    for (int round = 0; round < 200; ++round) {
      std::mt19937 random(round);
      struct Message {
        int from, to, tag, size;
      };
      std::vector<Message> messages;
      for (int i = 0; i < 20; ++i) {
        int from = static_cast<int>(random() % 4);
        messages.push_back(
            {from, (from + 1 + static_cast<int>(random() % 3)) % 4,
             static_cast<int>(random() % 3), static_cast<int>(random() % 300)});
        messages.back().tag += 10 * i;
      }
      std::vector<std::vector<char>> buffers(20);
      std::vector<int64_t> requests;
      for (int i = 0; i < 20; ++i) {
        const Message &m = messages[i];
        buffers[i].assign(m.size, static_cast<char>(i + round));
        if (m.from == group.rank())
          requests.push_back(
              group.send(buffers[i].data(), m.size, m.to, m.tag));
        if (m.to == group.rank()) {
          std::fill(buffers[i].begin(), buffers[i].end(), 0);
          requests.push_back(
              group.receive(buffers[i].data(), m.size, m.from, m.tag));
        }
      }
      for (int64_t request : requests)
        group.wait(request);
      for (int i = 0; i < 20; ++i)
        if (messages[i].to == group.rank())
          ASSERT_EQ(buffers[i],
                    std::vector<char>(messages[i].size,
                                      static_cast<char>(i + round)));
    }
  });
}

// Chunks of one rank may be neighbours.
TEST(ThreadTransport, RanksMayTalkToThemselves) {
  runRanks(2, [](Group &group) {
    int sent = 5, got = 0, again = 0;
    int64_t a = group.send(&sent, 4, group.rank(), 3);
    int64_t b = group.receive(&got, 4, group.rank(), 3);
    int64_t c = group.receive(&again, 4, group.rank(), 3);
    int64_t d = group.send(&sent, 4, group.rank(), 3);
    for (int64_t request : {a, b, c, d})
      group.wait(request);
    EXPECT_EQ(got + again, 10);
  });
}

TEST(ThreadTransport, GathersInRankOrder) {
  runRanks(5, [](Group &group) {
    for (int64_t round = 0; round < 300; ++round) {
      auto all = group.allGather(round * 10 + group.rank());
      for (int64_t rank = 0; rank < 5; ++rank)
        ASSERT_EQ(all[rank], round * 10 + rank);
    }
    std::string mine(group.rank() * 1000,
                     static_cast<char>('a' + group.rank()));
    std::vector<std::string> texts = group.gatherText(mine);
    if (group.rank() == 0)
      EXPECT_EQ(texts[4], std::string(4000, 'e'));
    else
      EXPECT_TRUE(texts.empty());
  });
}

TEST(ThreadTransport, AllocatesNothingInSteadyState) {
  std::atomic<long> before{0}, after{0};
  runRanks(2, [&](Group &group) {
    double value = 1, got[2];
    for (int round = 0; round < 200; ++round) {
      if (round == 20 && group.rank() == 0)
        before = allocationCount();
      int64_t a = group.receive(got, 8, 1 - group.rank(), 3);
      int64_t b = group.send(&value, 8, 1 - group.rank(), 3);
      group.wait(b);
      group.wait(a);
      group.allGather(&value, 8, got);
      if (round == 190 && group.rank() == 0)
        after = allocationCount();
    }
  });
  EXPECT_EQ(before, after);
}

TEST(ThreadTransport, AbortReachesSleepers) {
  runRanks(3, [](Group &group) {
    char byte = 0;
    if (group.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      group.abort("rank 1: out of ideas");
      return;
    }
    std::string text = errorOf([&] {
      if (group.rank() == 0)
        group.receiveNow(&byte, 1, 1, 0);
      else
        group.allGather(1);
    });
    EXPECT_EQ(text, "rank 1: out of ideas");
    EXPECT_EQ(errorOf([&] { group.allGather(1); }), "rank 1: out of ideas");
    EXPECT_EQ(errorOf([&] { group.sendNow(&byte, 1, 1, 0); }),
              "rank 1: out of ideas");
  });
}

// The memory of a rank that has aborted is its own again.
TEST(ThreadTransport, AbortTakesMessagesBack) {
  for (int round = 0; round < 200; ++round)
    runRanks(2, [&](Group &group) {
      auto block = std::make_unique<std::vector<char>>(1 << 16);
      int32_t peer = 1 - group.rank();
      if (group.rank() == 0) {
        group.send(block->data(), 1 << 16, peer, 1);
        group.receive(block->data(), 1 << 16, peer, 2);
        group.abort("rank 0: done");
        return;
      }
      errorOf([&] {
        group.receiveNow(block->data(), 1 << 16, peer, 1);
        group.sendNow(block->data(), 1 << 16, peer, 2);
        group.allGather(1);
      });
    });
}

TEST(ThreadTransport, NamesSilentRanks) {
  runRanks(
      2,
      [](Group &group) {
        if (group.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(400));
          EXPECT_THAT(errorOf([&] { group.allGather(1); }),
                      HasSubstr("rank 0 waits for rank 1"));
          return;
        }
        char byte;
        EXPECT_EQ(errorOf([&] { group.receiveNow(&byte, 1, 1, 0); }),
                  "rank 0 waits for rank 1: no sign of life for 0.1 s");
      },
      0.1);
}

// Rank 0 waits for something else, rank 2 for rank 1, which is to blame.
TEST(ThreadTransport, WatchersNameSilentRanks) {
  runRanks(
      3,
      [](Group &group) {
        if (group.rank() == 1)
          std::this_thread::sleep_for(std::chrono::milliseconds(600));
        std::string text = errorOf([&] {
          char byte;
          if (group.rank() == 2)
            group.receiveNow(&byte, 1, 1, 0);
          while (group.rank() == 0)
            group.watch();
          group.allGather(1);
        });
        EXPECT_THAT(text, HasSubstr("waits for rank 1: no sign of life for 0.2 "
                                    "s"));
      },
      0.2);
}

TEST(ThreadTransport, ComparesSizes) {
  runRanks(2, [](Group &group) {
    char bytes[8] = {};
    std::string text = errorOf([&] {
      if (group.rank() == 0)
        group.sendNow(bytes, 8, 1, 5);
      else
        group.receiveNow(bytes, 4, 0, 5);
    });
    EXPECT_THAT(text, testing::AnyOf("rank 0 sends 8 bytes with tag 5, rank 1 "
                                     "has 4",
                                     "rank 1 expects 4 bytes with tag 5, rank "
                                     "0 has 8"));
  });
}

TEST(Group, AgreesOnFaults) {
  runRanks(3, [](Group &group) {
    group.agree([] {});
    std::string text = errorOf([&] {
      group.agree([&] {
        if (group.rank() > 0)
          fail("fault {}", group.rank());
      });
    });
    EXPECT_EQ(text, group.rank() == 1 ? "fault 1" : "rank 1: fault 1");
    EXPECT_FALSE(group.isCommonFault());
    errorOf([&] { group.agree([] { fail("the same"); }); });
    EXPECT_TRUE(group.isCommonFault());
  });
}
