//===- AdaptTest.cpp - The policy of adaptive micro-batches ---------------===//

#include "runtime/src/common/Adapt.h"

#include <gmock/gmock.h>

using namespace mgq::rt;
using ::testing::ElementsAre;

namespace {
/// Divisors of 48; the simulator likes all larger numbers up to 24.
const std::vector<AdaptChoice> choices = {{3, 1.6},  {4, 1.4},   {6, 1.2},
                                          {8, 1.1},  {12, 1.05}, {16, 1.02},
                                          {24, 1.0}, {48, 1.3}};

AdaptState startAt(int64_t count) {
  AdaptState state;
  state.count = count;
  return state;
}

/// A recorded run: what each window measured.
struct Window {
  double bubble, rate;
};

/// Feeds steps of 48 samples; returns the number after each window.
std::vector<int64_t> follow(AdaptPolicy &policy, int64_t every,
                            const std::vector<Window> &windows) {
  std::vector<int64_t> counts;
  for (const Window &window : windows) {
    double busy = 48 / window.rate;
    for (int64_t i = 0; i < every; ++i) {
      int64_t before = policy.state().count;
      auto change = policy.step(busy, busy / (1 - window.bubble), 48);
      EXPECT_EQ(change.has_value(), before != policy.state().count);
      EXPECT_TRUE(!change || i == every - 1);
    }
    counts.push_back(policy.state().count);
  }
  return counts;
}
} // namespace

TEST(Adapt, GoesUpWhileRanksWait) {
  AdaptPolicy policy(choices, 10, startAt(4));
  // By a quarter to the next divisor: 5 -> 6, 7.5 -> 8, 10 -> 12. Below 30 %
  // it stays.
  EXPECT_THAT(follow(policy, 10,
                     {{0.5, 10}, {0.4, 10}, {0.31, 9.9}, {0.29, 9.9}, {0, 9}}),
              ElementsAre(6, 8, 12, 12, 8));
}

TEST(Adapt, GoesNoFurtherThanTheSimulatorSays) {
  AdaptPolicy policy(choices, 5, startAt(16));
  EXPECT_THAT(follow(policy, 5, {{0.9, 10}, {0.9, 10}, {0.9, 10}}),
              ElementsAre(24, 24, 24));
  // Nothing known helps nothing.
  AdaptPolicy blind({{2, -1}, {4, -1}}, 1, startAt(2));
  EXPECT_THAT(follow(blind, 1, {{0.9, 10}, {0.9, 10}, {0.9, 10}}),
              ElementsAre(2, 2, 2));
}

TEST(Adapt, TakesAChangeBackThatCostsTooMuch) {
  AdaptPolicy policy(choices, 10, startAt(6));
  // 6 -> 8 costs 4 %, 8 -> 12 costs 6 % against 8: back. Five windows pass
  // before 12 is tried again.
  EXPECT_THAT(follow(policy, 10,
                     {{0.5, 10},
                      {0.5, 9.6},
                      {0.4, 9.0},
                      {0.5, 9.6},
                      {0.5, 9.6},
                      {0.5, 9.6},
                      {0.5, 9.6},
                      {0.5, 9.6},
                      {0.4, 9.0},
                      {0.5, 9.6}}),
              ElementsAre(8, 12, 8, 8, 8, 8, 8, 12, 8, 8));
}

TEST(Adapt, GoesDownByAQuarterToo) {
  AdaptState state = startAt(24);
  state.rateBefore = 10;
  AdaptPolicy policy(choices, 1, state);
  // Nothing is measured right after a change. 24 / 1.25 is nearest to 16.
  EXPECT_THAT(follow(policy, 1, {{0.1, 5}, {0.1, 5}, {0.1, 5}, {0.1, 4}}),
              ElementsAre(24, 16, 16, 12));
  // There is nothing below the smallest: it is not rejected either.
  AdaptState least = startAt(3);
  least.rateBefore = 10;
  AdaptPolicy lowest(choices, 1, least);
  EXPECT_THAT(follow(lowest, 1, {{0.1, 5}, {0.1, 5}}), ElementsAre(3, 3));
  EXPECT_TRUE(lowest.state().rejected.empty());
}

TEST(Adapt, LooksAtWholeWindowsOnly) {
  AdaptPolicy policy(choices, 4, startAt(4));
  // The first step warms up; one that was not measured counts as a step.
  EXPECT_FALSE(policy.step(100, 100, 48));
  EXPECT_FALSE(policy.step(1, 4, 48));
  EXPECT_FALSE(policy.step(0, 0, 48));
  auto change = policy.step(1, 4, 48);
  ASSERT_TRUE(change);
  EXPECT_EQ(change->from, 4);
  EXPECT_EQ(change->to, 6);
  EXPECT_EQ(change->bubble, 0.75);
  EXPECT_EQ(change->rate, 48);
  EXPECT_EQ(change->rateBefore, 0);
  // A window without any measured step decides nothing.
  for (int i = 0; i < 8; ++i)
    EXPECT_FALSE(policy.step(0, 0, 48));
}

TEST(Adapt, GoesOnFromItsState) {
  std::vector<Window> first = {{0.5, 10}, {0.5, 9}}, then = {{0.5, 10}};
  AdaptPolicy whole(choices, 6, startAt(4));
  follow(whole, 6, first);
  AdaptPolicy cut(choices, 6, startAt(4));
  follow(cut, 6, first);
  EXPECT_EQ(cut.state().count, 4);
  ASSERT_EQ(cut.state().rejected.size(), 1u);
  EXPECT_EQ(cut.state().rejected[0].count, 6);
  AdaptPolicy resumed(choices, 6, cut.state());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(follow(resumed, 6, then), follow(whole, 6, then));
    EXPECT_EQ(resumed.state().rejected.size(), whole.state().rejected.size());
  }
  // In the middle of a window: the sums go on, but for the step that warms up.
  AdaptPolicy half(choices, 4, startAt(4));
  half.step(1, 4, 48);
  half.step(1, 4, 48);
  AdaptPolicy rest(choices, 4, half.state());
  rest.step(100, 100, 48);
  EXPECT_TRUE(rest.step(1, 4, 48));
}

TEST(Adapt, ZeroNeverChanges) {
  AdaptPolicy policy(choices, 0, startAt(4));
  for (int i = 0; i < 1000; ++i)
    EXPECT_FALSE(policy.step(1, 10, 48));
  EXPECT_EQ(policy.state().count, 4);
}

TEST(Adapt, NearestOfTwoIsTheLarger) {
  EXPECT_EQ(nearestChoice(choices, 1), 3);
  EXPECT_EQ(nearestChoice(choices, 5), 6);
  EXPECT_EQ(nearestChoice(choices, 10), 12);
  EXPECT_EQ(nearestChoice(choices, 1000), 48);
}
