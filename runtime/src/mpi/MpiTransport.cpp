//===- MpiTransport.cpp - Ranks as processes of mpirun --------------------===//
//
// The plugin libmgq_mpi.so. One communication thread makes all MPI calls: Open
// MPI moves no byte without a call, so this thread is what lets messages go on
// while the rank computes. It takes commands from a queue, and while requests
// are open it tests them and sleeps in between (20 us, growing to 200 us), so
// that it leaves the core to whoever computes there. Without open requests it
// sleeps until there is a command, or a heartbeat is due.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/mpi/Heartbeat.h"
#include "runtime/src/process/ProcessTransport.h"
#include <algorithm>
#include <climits>
#include <mpi.h>
#include <sys/prctl.h>

using namespace mgq::process;
using mgq::mpi::Heartbeat;

// MPI counts bytes in an int; longer messages go in pieces.
static constexpr int64_t pieceBytes = int64_t{1} << 30;
static constexpr std::chrono::microseconds shortestSleep{20};
static constexpr std::chrono::microseconds longestSleep{200};

namespace {
class MpiTransport : public ProcessTransport {
public:
  explicit MpiTransport(double timeoutSeconds)
      : ProcessTransport("mpi", timeoutSeconds), heartbeat(liveness) {}

private:
  bool start() override;
  void loop() override;
  void wake() override { forThread.notify_one(); }

  void post(int64_t index);
  void testOpen();
  bool check(int code, const char *call);
  void add(MPI_Request request, int64_t index);

  std::condition_variable forThread;
  Heartbeat heartbeat;
  MPI_Comm world = MPI_COMM_NULL;
  std::vector<int64_t> taken;
  std::vector<MPI_Request> requests;
  std::vector<int64_t> commandOf; ///< Of each request.
  std::vector<int> indices;
  std::vector<Command *> finished;
  bool progressed = false, closing = false;
};
} // namespace

/// Whether a call has succeeded.
bool MpiTransport::check(int code, const char *call) {
  if (code == MPI_SUCCESS)
    return true;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(std::string(call) + ": " + text);
  return false;
}

bool MpiTransport::start() {
  // Sleeps are to be as short as they say.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  int provided = 0;
  if (!check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided),
             "MPI_Init_thread") ||
      !check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup") ||
      !check(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN),
             "MPI_Comm_set_errhandler"))
    return false;
  MPI_Comm_rank(world, &table.rank);
  MPI_Comm_size(world, &table.size);
  heartbeat.start(table.rank, table.size);
  return true;
}

void MpiTransport::loop() {
  auto pause = shortestSleep;
  auto some = [&] { return hasCommands(); };
  while (!closing || !requests.empty()) {
    takeCommands(taken, [&](std::unique_lock<std::mutex> &lock) {
      if (requests.empty() && !closing)
        forThread.wait_for(lock, liveness.untilBeat(), some);
      else if (!progressed && forThread.wait_for(lock, pause, some))
        pause = shortestSleep;
    });
    if (!taken.empty())
      pause = shortestSleep;
    for (int64_t index : taken)
      post(index);
    taken.clear();
    testOpen();
    check(heartbeat.beat(), "a heartbeat");
    pause = progressed ? shortestSleep : std::min(2 * pause, longestSleep);
  }
  heartbeat.stop();
  MPI_Comm_free(&world);
  MPI_Finalize();
}

void MpiTransport::add(MPI_Request request, int64_t index) {
  requests.push_back(request);
  commandOf.push_back(index);
  indices.resize(std::max(indices.size(), requests.size()));
}

void MpiTransport::post(int64_t index) {
  Command *command = &commandAt(index);
  MPI_Request request = MPI_REQUEST_NULL;
  if (command->kind == Command::Abort)
    MPI_Abort(MPI_COMM_WORLD, 1);
  if (command->kind == Command::Close) {
    closing = true;
    return;
  }
  if (command->kind == Command::AllGather) {
    auto bytes = static_cast<int>(command->bytes);
    check(MPI_Iallgather(command->from, bytes, MPI_BYTE, command->to, bytes,
                         MPI_BYTE, world, &request),
          "MPI_Iallgather");
    command->open = 1;
    return add(request, index);
  }
  if (command->kind == Command::Send)
    command->span.begin = seconds();
  int64_t at = 0;
  do {
    auto bytes = static_cast<int>(std::min(pieceBytes, command->bytes - at));
    if (command->kind == Command::Send)
      check(MPI_Isend(static_cast<const char *>(command->from) + at, bytes,
                      MPI_BYTE, command->peer, command->tag, world, &request),
            "MPI_Isend");
    else
      check(MPI_Irecv(static_cast<char *>(command->to) + at, bytes, MPI_BYTE,
                      command->peer, command->tag, world, &request),
            "MPI_Irecv");
    ++command->open;
    add(request, index);
    at += pieceBytes;
  } while (at < command->bytes);
}

void MpiTransport::testOpen() {
  progressed = false;
  if (requests.empty())
    return;
  int count = 0;
  check(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &count,
                     indices.data(), MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0)
    return;
  progressed = true;
  finished.clear();
  for (int i = 0; i < count; ++i) {
    Command &command = commandAt(commandOf[indices[i]]);
    if (--command.open == 0)
      finished.push_back(&command);
  }
  finish(finished.data(), finished.size());
  // Done ones are null; the others keep their order.
  size_t kept = 0;
  for (size_t i = 0; i < requests.size(); ++i)
    if (requests[i] != MPI_REQUEST_NULL) {
      requests[kept] = requests[i];
      commandOf[kept++] = commandOf[i];
    }
  requests.resize(kept);
  commandOf.resize(kept);
}

extern "C" __attribute__((visibility("default"))) mgq_transport *
mgq_open_transport(int32_t abiVersion, double timeoutSeconds, char *error,
                   int64_t errorBytes) {
  return openTransport(new MpiTransport(timeoutSeconds), abiVersion, error,
                       errorBytes);
}
