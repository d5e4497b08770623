//===- Liveness.cpp - Which processes are alive ---------------------------===//

#include "runtime/src/process/Liveness.h"
#include <algorithm>

using namespace mgq::process;

// What a beat and its reading may be late by, both together, is a fraction of
// the timeout.
static constexpr double beatsPerTimeout = 16;

static Clock::duration toDuration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds));
}

Liveness::Liveness(double timeoutSeconds)
    : lastCall(Clock::now().time_since_epoch().count()) {
  if (timeoutSeconds > 0)
    interval = toDuration(
        std::max(0.02, std::min(timeoutSeconds, 1e6) / beatsPerTimeout));
}

Clock::time_point Liveness::lifeOf(int peer) const {
  Clock::rep life = 0;
  for (int hops = 0; peer >= 0 && hops < size; ++hops) {
    life = std::max(life, lives[peer].call.load());
    peer = lives[peer].waitsFor;
  }
  if (peer == everybody)
    for (int other = 0; other < size; ++other)
      if (other != rank)
        life = std::max(life, lives[other].call.load());
  return Clock::time_point(Clock::duration(life));
}

int Liveness::silentFor(double seconds) const {
  Clock::rep oldest = (Clock::now() - toDuration(std::min(seconds, 1e8)))
                          .time_since_epoch()
                          .count();
  for (int other = 0; other < size; ++other)
    if (other != rank &&
        (lives[other].beat < oldest ||
         (lives[other].waitsFor == -1 && lives[other].call < oldest)))
      return other;
  return -1;
}

void Liveness::followWaits(int &waiting, int &awaited) const {
  for (int hops = 0; awaited >= 0 && hops < size; ++hops) {
    int other = lives[awaited].waitsFor;
    if (other == -1)
      return;
    waiting = awaited;
    awaited = other;
  }
}

void Liveness::start(int ownRank, int ranks) {
  rank = ownRank;
  size = ranks;
  lives = std::vector<Life>(size);
  for (Life &life : lives)
    life.call = life.beat = Clock::now().time_since_epoch().count();
  next = Clock::now() + interval;
}

Clock::duration Liveness::untilBeat() const {
  if (interval.count() == 0 || size == 1)
    return std::chrono::hours(24);
  return std::max(next - Clock::now(), Clock::duration(0));
}

bool Liveness::takeBeat(Beat &beat) {
  if (untilBeat().count() > 0)
    return false;
  next = Clock::now() + interval;
  Clock::time_point call{Clock::duration(lastCall)};
  beat = {std::chrono::duration<double>(Clock::now() - call).count(), waitsFor};
  return true;
}

void Liveness::hear(int from, const Beat &beat) {
  Clock::rep call =
      (Clock::now() - toDuration(beat.age)).time_since_epoch().count();
  Life &known = lives[from];
  known.call = std::max(known.call.load(), call);
  known.beat = Clock::now().time_since_epoch().count();
  known.waitsFor = static_cast<int>(beat.peer);
}
