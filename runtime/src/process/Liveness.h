//===- Liveness.h - Which processes are alive -------------------*- C++ -*-===//
//
// Now and then a process tells all others how long ago its rank called the
// transport, and for whom the rank waits. One that waits is as alive as that
// one, so whoever waits for it follows the chain: a rank behind a slow one is
// not silent. Nobody passes on what it heard, or ranks that wait for each other
// would keep each other alive by the time that messages take.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_PROCESS_LIVENESS_H
#define MGQ_RUNTIME_PROCESS_LIVENESS_H

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace mgq::process {

using Clock = std::chrono::steady_clock;

/// What a process tells the others.
struct Beat {
  double age;   ///< Seconds since its last call.
  int64_t peer; ///< For whom it waits.
};

class Liveness {
public:
  /// `timeoutSeconds`: 0: no beat is ever due.
  explicit Liveness(double timeoutSeconds);

  //===--- The rank's thread ---===//

  /// The rank makes a call.
  void noteCall() { lastCall = Clock::now().time_since_epoch().count(); }
  /// The rank waits for `peer`: -1: nobody, everybody: for all.
  void setWaitsFor(int peer) { waitsFor = peer; }
  static constexpr int everybody = -2;
  /// When `peer` was last alive, as far as this process knows: it, or one that
  /// it waits for.
  Clock::time_point lifeOf(int peer) const;

  /// A rank that waits for nobody and has been silent for that long, or whose
  /// process has, whatever it waited for; -1: there is none.
  int silentFor(double seconds) const;

  /// Who waits for whom at the end of the chain that begins with `waiting`.
  void followWaits(int &waiting, int &awaited) const;

  //===--- The communication thread ---===//

  void start(int rank, int size);
  /// How long until the next beat.
  Clock::duration untilBeat() const;
  /// If it is time, fills in what to tell all others, and returns true.
  bool takeBeat(Beat &beat);
  /// What another process tells.
  void hear(int from, const Beat &beat);

private:
  /// What is known of a rank.
  struct Life {
    std::atomic<Clock::rep> call{0};
    std::atomic<Clock::rep> beat{0}; ///< When the last one came.
    std::atomic<int> waitsFor{-1};
  };

  std::atomic<Clock::rep> lastCall;
  std::atomic<int> waitsFor{-1};
  std::vector<Life> lives; ///< Of all ranks.
  Clock::duration interval{0};
  Clock::time_point next;
  int rank = 0, size = 1;
};

} // namespace mgq::process

#endif // MGQ_RUNTIME_PROCESS_LIVENESS_H
