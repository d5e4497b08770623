//===- LivenessTest.cpp - Which processes are silent ----------------------===//

#include "runtime/src/process/Liveness.h"
#include <gtest/gtest.h>
#include <thread>

using namespace mgq::process;

namespace {

constexpr double timeout = 0.2; // Seconds.
constexpr int nobody = -1;

/// Rank 0 of two, `seconds` after a beat of rank 1.
Liveness &after(Liveness &liveness, const Beat &beat, double seconds) {
  liveness.start(/*rank=*/0, /*size=*/2);
  liveness.hear(1, beat);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return liveness;
}

TEST(Liveness, ARankThatComputesForLong) {
  Liveness liveness(timeout);
  EXPECT_EQ(after(liveness, {0, nobody}, 0).silentFor(timeout), -1);
  // Its process is there, its last call was long ago.
  EXPECT_EQ(after(liveness, {0.3, nobody}, 0.25).silentFor(timeout), 1);
}

TEST(Liveness, ARankThatWaitsIsNotSilent) {
  constexpr double longTimeout = 2; // Beats come in time on a busy machine.
  Liveness liveness(longTimeout);
  liveness.start(0, 2);
  for (double age = 0; age < 3; age += 0.3) {
    liveness.hear(1, {age, 0});
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
  }
  EXPECT_EQ(liveness.silentFor(longTimeout), -1);
}

TEST(Liveness, AProcessThatStopsWhileItsRankWaits) {
  Liveness liveness(timeout);
  EXPECT_EQ(after(liveness, {0, 0}, 0.3).silentFor(timeout), 1);
  EXPECT_EQ(after(liveness, {0, Liveness::everybody}, 0.3).silentFor(timeout),
            1);
}

} // namespace
