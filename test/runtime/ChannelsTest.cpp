//===- ChannelsTest.cpp - Orders of messages between ranks ----------------===//

#include "runtime/src/cuda/Channels.h"
#include "test/runtime/TestFiles.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

using namespace mgq::rt;
using testing::ElementsAre;
using testing::HasSubstr;

namespace {
/// A program of stages that only exchange messages.
struct Stages {
  explicit Stages(int32_t count) : steps(count), evaluations(count) {}

  void send(int32_t from, int32_t to, int32_t tag, int64_t bytes = 8) {
    add(steps[from], MGQ_OP_SEND, to, tag, bytes);
  }
  void receive(int32_t from, int32_t to, int32_t tag, int64_t bytes = 8) {
    add(steps[to], MGQ_OP_RECEIVE, from, tag, bytes);
  }
  void evaluate(int32_t from, int32_t to, int32_t tag) {
    add(evaluations[from], MGQ_OP_SEND, to, tag, 8);
    add(evaluations[to], MGQ_OP_RECEIVE, from, tag, 8);
  }
  static void add(std::vector<mgq_op> &ops, int32_t kind, int32_t peer,
                  int32_t tag, int64_t bytes) {
    mgq_op op = {};
    op.kind = kind;
    op.peer = peer;
    op.tag = tag;
    op.bytes = bytes;
    ops.push_back(op);
  }

  ChannelPlan plan() {
    ranks.assign(steps.size(), {});
    for (size_t i = 0; i < ranks.size(); ++i) {
      ranks[i].ops = steps[i].data();
      ranks[i].op_count = static_cast<int32_t>(steps[i].size());
      ranks[i].evaluate_ops = evaluations[i].data();
      ranks[i].evaluate_op_count = static_cast<int32_t>(evaluations[i].size());
    }
    program.stages = static_cast<int32_t>(ranks.size());
    program.ranks = ranks.data();
    return ChannelPlan(program);
  }
  std::string fault() {
    return test::errorOf([&] { plan(); });
  }

  std::vector<std::vector<mgq_op>> steps, evaluations;
  std::vector<mgq_rank> ranks;
  mgq_program program = {};
};
} // namespace

TEST(Channels, OneOrderIsOneChannelEachWay) {
  Stages stages(2);
  for (int32_t tag : {3, 1, 2})
    stages.send(0, 1, tag);
  stages.receive(1, 0, 7);
  for (int32_t tag : {3, 1, 2})
    stages.receive(0, 1, tag);
  stages.send(1, 0, 7);
  stages.evaluate(0, 1, 4);
  ChannelPlan plan = stages.plan();
  EXPECT_THAT(plan.channels(), ElementsAre(Channel{0, 1, 0}, Channel{1, 0, 0}));
  EXPECT_THAT(plan.channelsOf(0, stages.steps[0].data()),
              ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(plan.channelsOf(1, stages.steps[1].data()),
              ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(plan.channelsOf(1, stages.evaluations[1].data()), ElementsAre(0));
}

// Sent as 1 2 3 4, received as 3 1 4 2: no channel has two that cross.
TEST(Channels, CrossingMessagesHaveChannelsOfTheirOwn) {
  Stages stages(3);
  stages.send(0, 0, 9); // To itself.
  stages.receive(0, 0, 9);
  for (int32_t tag : {1, 2, 3, 4})
    stages.send(0, 2, tag);
  for (int32_t tag : {3, 1, 4, 2})
    stages.receive(0, 2, tag);
  ChannelPlan plan = stages.plan();
  EXPECT_THAT(plan.channels(), ElementsAre(Channel{0, 2, 0}, Channel{0, 2, 1}));
  EXPECT_THAT(plan.channelsOf(0, stages.steps[0].data()),
              ElementsAre(-1, -1, 0, 0, 1, 1));
  EXPECT_THAT(plan.channelsOf(2, stages.steps[2].data()),
              ElementsAre(1, 0, 1, 0));
  EXPECT_TRUE(plan.channelsOf(1, stages.steps[1].data()).empty());
}

TEST(Channels, FaultsNameTheMessage) {
  Stages sent(2);
  sent.send(0, 1, 5);
  EXPECT_EQ(sent.fault(),
            "the program's tables are damaged: the message with tag 5 from "
            "stage 0 to stage 1 is not received");
  sent.receive(0, 1, 5, 16);
  EXPECT_THAT(sent.fault(), HasSubstr("stage 0 to stage 1 has two sizes"));
  Stages received(2);
  received.receive(1, 0, 6);
  EXPECT_THAT(received.fault(), HasSubstr("tag 6 from stage 1 to stage 0 is "
                                          "not sent"));
  received.receive(1, 0, 6);
  EXPECT_THAT(received.fault(), HasSubstr("is received twice"));
  Stages reversed(2);
  for (int32_t tag : {1, 2, 3, 4, 5}) {
    reversed.send(0, 1, tag);
    reversed.receive(0, 1, 6 - tag);
  }
  EXPECT_EQ(reversed.fault(), "not supported yet: messages from stage 0 to "
                              "stage 1 in more than 4 orders");
}
