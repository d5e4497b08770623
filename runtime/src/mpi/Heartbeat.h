//===- Heartbeat.h - Beats between processes of mpirun ----------*- C++ -*-===//
#ifndef MGQ_RUNTIME_MPI_HEARTBEAT_H
#define MGQ_RUNTIME_MPI_HEARTBEAT_H

#include "runtime/src/process/Liveness.h"
#include <mpi.h>

namespace mgq::mpi {

/// Sends what `liveness` has to tell. Used by the communication thread only.
class Heartbeat {
public:
  explicit Heartbeat(process::Liveness &liveness) : liveness(liveness) {}

  void start(int rank, int size);
  /// Beats if it is time; returns the code of a failed MPI call.
  int beat();
  void stop();

private:
  int drain();

  process::Liveness &liveness;
  int rank = 0, size = 1;
  MPI_Comm world = MPI_COMM_NULL;
  std::vector<MPI_Request> requests; ///< One to each rank.
  std::vector<process::Beat> beats;  ///< What they send.
};

} // namespace mgq::mpi

#endif // MGQ_RUNTIME_MPI_HEARTBEAT_H
