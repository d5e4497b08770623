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

#include "runtime/include/rt.h"
#include "runtime/src/mpi/Heartbeat.h"
#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mpi.h>
#include <mutex>
#include <string>
#include <sys/prctl.h>
#include <thread>
#include <unistd.h>
#include <vector>

using mgq::mpi::Clock;
using mgq::mpi::Heartbeat;

// MPI counts bytes in an int; longer messages go in pieces.
static constexpr int64_t pieceBytes = int64_t{1} << 30;
static constexpr std::chrono::microseconds shortestSleep{20};
static constexpr std::chrono::microseconds longestSleep{200};
// How long MPI_Abort may take to end this process.
static constexpr unsigned abortSeconds = 5;

/// Now, as spans count.
static double seconds() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

namespace {
/// What the rank wants of the communication thread.
struct Command {
  enum Kind { Send, Receive, AllGather, Abort, Close } kind = Send;
  const void *from = nullptr;
  void *to = nullptr;
  int64_t bytes = 0;
  int peer = 0, tag = 0;
  int open = 0; ///< MPI's requests that are not done.
  bool done = false;
  mgq_span span = {-1, -1}; ///< A receiver does not know when it began.
};

class MpiTransport {
public:
  explicit MpiTransport(double timeoutSeconds)
      : timeout(timeoutSeconds), heartbeat(timeoutSeconds) {}

  /// Starts MPI on the communication thread. Returns a fault or nothing.
  std::string open();

  mgq_transport table = {};

private:
  int32_t begin(Command command, int64_t *request);
  int32_t wait(int64_t request, mgq_span *span);
  int32_t test(int64_t request, int32_t *done, mgq_span *span);
  int32_t waitAny(const int64_t *requests, int32_t count);
  int32_t sleepUntilAny(std::unique_lock<std::mutex> &lock,
                        const int64_t *wanted, int32_t count);
  void endCommand(int64_t request, mgq_span *span);
  int32_t fault(std::string text);
  void abort(const char *message);
  void close();

  // On the communication thread.
  void run();
  bool start();
  void loop();
  void post(int64_t index);
  void testOpen();
  void check(int code, const char *call);
  void add(MPI_Request request, int64_t index);

  double timeout;
  Heartbeat heartbeat;
  std::string errorText; ///< What `error` returns.
  std::thread thread;

  std::mutex mutex;
  std::condition_variable forThread, forRank;
  bool started = false;
  std::string failure; ///< Of an MPI call; nothing works any more.
  std::deque<Command> commands;
  std::vector<int64_t> unused, queue;

  // The communication thread's own.
  MPI_Comm world = MPI_COMM_NULL;
  std::vector<int64_t> taken;
  std::vector<MPI_Request> requests;
  std::vector<int64_t> commandOf; ///< Of each request.
  std::vector<int> indices;
  bool progressed = false, closing = false;
};
} // namespace

std::string MpiTransport::open() {
  thread = std::thread([this] { run(); });
  std::unique_lock<std::mutex> lock(mutex);
  forRank.wait(lock, [&] { return started || !failure.empty(); });
  if (!failure.empty()) {
    lock.unlock();
    thread.join();
    return failure;
  }
  table.self = this;
  table.name = "mpi";
  table.send = [](void *self, const void *data, int64_t bytes, int32_t peer,
                  int32_t tag, int64_t *request) {
    return static_cast<MpiTransport *>(self)->begin(
        {Command::Send, data, nullptr, bytes, peer, tag}, request);
  };
  table.receive = [](void *self, void *data, int64_t bytes, int32_t peer,
                     int32_t tag, int64_t *request) {
    return static_cast<MpiTransport *>(self)->begin(
        {Command::Receive, nullptr, data, bytes, peer, tag}, request);
  };
  table.wait = [](void *self, int64_t request, mgq_span *span) {
    return static_cast<MpiTransport *>(self)->wait(request, span);
  };
  table.test = [](void *self, int64_t request, int32_t *done, mgq_span *span) {
    return static_cast<MpiTransport *>(self)->test(request, done, span);
  };
  table.wait_any = [](void *self, const int64_t *requests, int32_t count) {
    return static_cast<MpiTransport *>(self)->waitAny(requests, count);
  };
  table.all_gather = [](void *self, const void *mine, int64_t bytes,
                        void *all) {
    auto *transport = static_cast<MpiTransport *>(self);
    int64_t request;
    int32_t status = transport->begin(
        {Command::AllGather, mine, all, bytes, -1, 0}, &request);
    return status ? status : transport->wait(request, nullptr);
  };
  table.error = [](void *self) {
    return static_cast<MpiTransport *>(self)->errorText.c_str();
  };
  table.abort = [](void *self, const char *message) {
    static_cast<MpiTransport *>(self)->abort(message);
  };
  table.close = [](void *self) { static_cast<MpiTransport *>(self)->close(); };
  return "";
}

//===--- The rank's side --------------------------------------------------===//

int32_t MpiTransport::fault(std::string text) {
  errorText = std::move(text);
  return 1;
}

int32_t MpiTransport::begin(Command command, int64_t *request) {
  if (command.kind == Command::AllGather && command.bytes > INT_MAX)
    return fault("a gather of " + std::to_string(command.bytes) +
                 " bytes is too long for MPI");
  heartbeat.noteCall();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!failure.empty())
      return fault(failure);
    if (unused.empty()) {
      commands.emplace_back();
      unused.reserve(commands.size());
      queue.reserve(commands.size());
      unused.push_back(static_cast<int64_t>(commands.size()) - 1);
    }
    *request = unused.back();
    unused.pop_back();
    commands[*request] = command;
    queue.push_back(*request);
  }
  forThread.notify_one();
  return 0;
}

/// Sleeps until one of some commands is done; `mutex` is held by the caller.
int32_t MpiTransport::sleepUntilAny(std::unique_lock<std::mutex> &lock,
                                    const int64_t *wanted, int32_t count) {
  auto ready = [&] {
    return !failure.empty() ||
           std::any_of(wanted, wanted + count,
                       [&](int64_t i) { return commands[i].done; });
  };
  const Command &oldest = commands[wanted[0]];
  bool gathers = oldest.kind == Command::AllGather;
  int peer = gathers ? Heartbeat::everybody : oldest.peer;
  heartbeat.setWaitsFor(peer);
  // Without a limit: longer than any run.
  auto span =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
          timeout > 0 ? std::min(timeout, 1e8) : 1e8));
  auto limit = Clock::now() + span;
  while (!forRank.wait_until(lock, limit, ready)) {
    limit = heartbeat.lifeOf(peer) + span;
    if (limit > Clock::now())
      continue;
    int waiting = table.rank, awaited = peer;
    heartbeat.followWaits(waiting, awaited);
    char text[160], name[32] = "the others";
    if (awaited >= 0)
      snprintf(name, sizeof name, "rank %d", awaited);
    snprintf(text, sizeof text,
             "rank %d waits for %s: no sign of life for %g s", waiting, name,
             timeout);
    return fault(text);
  }
  heartbeat.setWaitsFor(-1);
  return failure.empty() ? 0 : fault(failure);
}

/// Gives back a command that is done; `mutex` is held by the caller.
void MpiTransport::endCommand(int64_t request, mgq_span *span) {
  if (span)
    *span = commands[request].span;
  unused.push_back(request);
}

int32_t MpiTransport::wait(int64_t request, mgq_span *span) {
  heartbeat.noteCall();
  std::unique_lock<std::mutex> lock(mutex);
  if (request < 0)
    return failure.empty() ? 0 : fault(failure);
  if (!commands[request].done)
    if (int32_t status = sleepUntilAny(lock, &request, 1))
      return status;
  endCommand(request, span);
  return 0;
}

int32_t MpiTransport::test(int64_t request, int32_t *done, mgq_span *span) {
  heartbeat.noteCall();
  std::lock_guard<std::mutex> lock(mutex);
  *done = commands[request].done;
  if (!*done)
    return failure.empty() ? 0 : fault(failure);
  endCommand(request, span);
  return 0;
}

int32_t MpiTransport::waitAny(const int64_t *requests, int32_t count) {
  heartbeat.noteCall();
  std::unique_lock<std::mutex> lock(mutex);
  return sleepUntilAny(lock, requests, count);
}

void MpiTransport::abort(const char *message) {
  fprintf(stderr, "error: %s\n", message);
  fflush(nullptr);
  int64_t request;
  if (begin({Command::Abort}, &request) == 0)
    sleep(abortSeconds);
  _exit(1);
}

void MpiTransport::close() {
  int64_t request;
  if (begin({Command::Close}, &request) == 0)
    thread.join();
  else
    thread.detach();
}

//===--- The communication thread -----------------------------------------===//

void MpiTransport::check(int code, const char *call) {
  if (code == MPI_SUCCESS)
    return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  std::lock_guard<std::mutex> lock(mutex);
  if (failure.empty())
    failure = std::string(call) + ": " + text;
  forRank.notify_all();
}

bool MpiTransport::start() {
  // Sleeps are to be as short as they say.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided),
        "MPI_Init_thread");
  if (failure.empty())
    check(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
  if (failure.empty())
    check(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN),
          "MPI_Comm_set_errhandler");
  if (!failure.empty())
    return false;
  MPI_Comm_rank(world, &table.rank);
  MPI_Comm_size(world, &table.size);
  heartbeat.start(table.rank, table.size);
  std::lock_guard<std::mutex> lock(mutex);
  started = true;
  forRank.notify_all();
  return true;
}

void MpiTransport::run() {
  if (start())
    loop();
}

void MpiTransport::loop() {
  auto pause = shortestSleep;
  while (!closing || !requests.empty()) {
    {
      std::unique_lock<std::mutex> lock(mutex);
      auto some = [&] { return !queue.empty(); };
      if (requests.empty() && !closing)
        forThread.wait_for(lock, heartbeat.untilBeat(), some);
      else if (!progressed && forThread.wait_for(lock, pause, some))
        pause = shortestSleep;
      taken.swap(queue);
    }
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
  Command *command;
  {
    // The rank may be adding commands; this one's address stays.
    std::lock_guard<std::mutex> lock(mutex);
    command = &commands[index];
  }
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
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (int i = 0; i < count; ++i) {
      Command &command = commands[commandOf[indices[i]]];
      command.done = --command.open == 0;
      command.span.end = seconds();
    }
  }
  forRank.notify_all();
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
  auto say = [&](const std::string &text) -> mgq_transport * {
    snprintf(error, static_cast<size_t>(errorBytes), "%s", text.c_str());
    return nullptr;
  };
  if (abiVersion != MGQ_ABI_VERSION)
    return say("the plugin is of version " + std::to_string(MGQ_ABI_VERSION) +
               " of the runtime, the program of version " +
               std::to_string(abiVersion));
  // Lives as long as the process.
  auto *transport = new MpiTransport(timeoutSeconds);
  std::string fault = transport->open();
  return fault.empty() ? &transport->table : say(fault);
}
