//===- Heartbeat.h - Which processes are alive ---------------------*- C++
//-*-===//
//
// Now and then a process tells all others how long ago it was last alive: when
// its rank called the transport, or, while the rank waits for another, when
// that one was. So a rank that waits for a slow one is as alive as that one,
// and ranks that wait for each other in a ring grow silent together.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_MPI_HEARTBEAT_H
#define MGQ_RUNTIME_MPI_HEARTBEAT_H

#include <atomic>
#include <chrono>
#include <mpi.h>
#include <vector>

namespace mgq::mpi {

using Clock = std::chrono::steady_clock;

class Heartbeat {
public:
  /// `timeoutSeconds`: 0: none is ever sent.
  explicit Heartbeat(double timeoutSeconds);

  //===--- The rank's thread ---===//

  /// The rank makes a call.
  void noteCall() { lastCall = Clock::now().time_since_epoch().count(); }
  /// The rank waits for `peer`: -1: nobody, everybody: for all.
  void setWaitsFor(int peer) { waitsFor = peer; }
  static constexpr int everybody = -2;
  /// When `peer` was last alive, as far as this process knows.
  Clock::time_point lifeOf(int peer) const;

  //===--- The communication thread ---===//

  void start(int rank, int size);
  /// How long until the next beat.
  Clock::duration untilBeat() const;
  /// Beats if it is time; returns the code of a failed MPI call.
  int beat();
  /// Takes what the others sent. Before the end.
  int drain();
  void stop();

private:
  Clock::time_point ownLife() const;

  std::atomic<Clock::rep> lastCall;
  std::atomic<int> waitsFor{-1};
  std::vector<std::atomic<Clock::rep>> lives; ///< Of all ranks.
  Clock::duration interval{0};
  Clock::time_point next;
  int rank = 0, size = 1;
  MPI_Comm world = MPI_COMM_NULL;
  std::vector<MPI_Request> requests; ///< One to each rank.
  std::vector<double> ages;          ///< What they send, seconds.
};

} // namespace mgq::mpi

#endif // MGQ_RUNTIME_MPI_HEARTBEAT_H
