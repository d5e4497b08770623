//===- Heartbeat.cpp - Beats between processes of mpirun ------------------===//

#include "runtime/src/mpi/Heartbeat.h"

using namespace mgq::mpi;
using mgq::process::Beat;

void Heartbeat::start(int ownRank, int ranks) {
  rank = ownRank;
  size = ranks;
  requests.assign(size, MPI_REQUEST_NULL);
  beats.resize(size);
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
}

/// Takes what the others sent.
int Heartbeat::drain() {
  for (;;) {
    int waiting = 0;
    MPI_Status status;
    if (int code = MPI_Iprobe(MPI_ANY_SOURCE, 0, world, &waiting, &status))
      return code;
    if (!waiting)
      return MPI_SUCCESS;
    Beat beat = {};
    if (int code = MPI_Recv(&beat, sizeof beat, MPI_BYTE, status.MPI_SOURCE, 0,
                            world, MPI_STATUS_IGNORE))
      return code;
    liveness.hear(status.MPI_SOURCE, beat);
  }
}

int Heartbeat::beat() {
  Beat mine;
  if (!liveness.takeBeat(mine))
    return MPI_SUCCESS;
  if (int code = drain())
    return code;
  for (int peer = 0; peer < size; ++peer) {
    int done = 1;
    if (int code = MPI_Test(&requests[peer], &done, MPI_STATUS_IGNORE))
      return code;
    if (!done || peer == rank)
      continue; // It does not listen: nothing new is sent before it does.
    beats[peer] = mine;
    if (int code = MPI_Isend(&beats[peer], sizeof mine, MPI_BYTE, peer, 0,
                             world, &requests[peer]))
      return code;
  }
  return MPI_SUCCESS;
}

void Heartbeat::stop() {
  MPI_Barrier(world);
  drain();
  for (MPI_Request &request : requests)
    if (request != MPI_REQUEST_NULL)
      MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Comm_free(&world);
}
