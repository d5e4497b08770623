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
  if (peer >= 0)
    life = lives[peer];
  else
    for (int other = 0; other < size; ++other)
      if (other != rank)
        life = std::max(life, lives[other].load());
  return Clock::time_point(Clock::duration(life));
}

Clock::time_point Heartbeat::ownLife() const {
  Clock::time_point life{Clock::duration(lastCall)};
  int peer = waitsFor;
  return peer == -1 ? life : std::max(life, lifeOf(peer));
}

void Heartbeat::start(int ownRank, int ranks) {
  rank = ownRank;
  size = ranks;
  lives = std::vector<std::atomic<Clock::rep>>(size);
  for (std::atomic<Clock::rep> &life : lives)
    life = Clock::now().time_since_epoch().count();
  requests.assign(size, MPI_REQUEST_NULL);
  ages.resize(size);
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
    double age = 0;
    if (int code = MPI_Recv(&age, 1, MPI_DOUBLE, status.MPI_SOURCE, 0, world,
                            MPI_STATUS_IGNORE))
      return code;
    Clock::rep life =
        (Clock::now() - toDuration(age)).time_since_epoch().count();
    std::atomic<Clock::rep> &known = lives[status.MPI_SOURCE];
    known = std::max(known.load(), life);
  }
}

int Heartbeat::beat() {
  if (untilBeat().count() > 0)
    return MPI_SUCCESS;
  next = Clock::now() + interval;
  if (int code = drain())
    return code;
  double age = std::chrono::duration<double>(Clock::now() - ownLife()).count();
  for (int peer = 0; peer < size; ++peer) {
    int done = 1;
    if (int code = MPI_Test(&requests[peer], &done, MPI_STATUS_IGNORE))
      return code;
    if (!done || peer == rank)
      continue; // It does not listen: nothing new is sent before it does.
    ages[peer] = age;
    if (int code = MPI_Isend(&ages[peer], 1, MPI_DOUBLE, peer, 0, world,
                             &requests[peer]))
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
