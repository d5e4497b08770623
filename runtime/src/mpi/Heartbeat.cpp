//===- Heartbeat.cpp - Which processes are alive --------------------------===//

#include "runtime/src/mpi/Heartbeat.h"
#include <algorithm>

using namespace mgq::mpi;

// What a beat and its reading may be late by, both together, is a fraction of
// the timeout.
static constexpr double beatsPerTimeout = 16;

static Clock::duration toDuration(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(seconds));
}

Heartbeat::Heartbeat(double timeoutSeconds)
    : lastCall(Clock::now().time_since_epoch().count()) {
  if (timeoutSeconds > 0)
    interval = toDuration(
        std::max(0.02, std::min(timeoutSeconds, 1e6) / beatsPerTimeout));
}

Clock::time_point Heartbeat::lifeOf(int peer) const {
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

void Heartbeat::followWaits(int &waiting, int &awaited) const {
  for (int hops = 0; awaited >= 0 && hops < size; ++hops) {
    int next = lives[awaited].waitsFor;
    if (next == -1)
      return;
    waiting = awaited;
    awaited = next;
  }
}

void Heartbeat::start(int ownRank, int ranks) {
  rank = ownRank;
  size = ranks;
  lives = std::vector<Life>(size);
  for (Life &life : lives)
    life.call = Clock::now().time_since_epoch().count();
  requests.assign(size, MPI_REQUEST_NULL);
  beats.resize(size);
  next = Clock::now() + interval;
  MPI_Comm_dup(MPI_COMM_WORLD, &world);
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
}

Clock::duration Heartbeat::untilBeat() const {
  if (interval.count() == 0 || size == 1)
    return std::chrono::hours(24);
  return std::max(next - Clock::now(), Clock::duration(0));
}

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
    Clock::rep call =
        (Clock::now() - toDuration(beat.age)).time_since_epoch().count();
    Life &known = lives[status.MPI_SOURCE];
    known.call = std::max(known.call.load(), call);
    known.waitsFor = static_cast<int>(beat.peer);
  }
}

int Heartbeat::beat() {
  if (untilBeat().count() > 0)
    return MPI_SUCCESS;
  next = Clock::now() + interval;
  if (int code = drain())
    return code;
  Clock::time_point call{Clock::duration(lastCall)};
  Beat mine = {std::chrono::duration<double>(Clock::now() - call).count(),
               waitsFor};
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
