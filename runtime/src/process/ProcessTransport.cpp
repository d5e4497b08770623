//===- ProcessTransport.cpp - The rank's side of a plugin -----------------===//

#include "runtime/src/process/ProcessTransport.h"
#include <algorithm>
#include <climits>
#include <cstdio>
#include <unistd.h>

using namespace mgq::process;

// How long telling the others of a fault may take.
static constexpr std::chrono::seconds abortTime{5};

ProcessTransport::ProcessTransport(const char *name, double timeoutSeconds)
    : timeout(timeoutSeconds), liveness(timeoutSeconds) {
  table.name = name;
}

std::string ProcessTransport::open() {
  fillTable();
  thread = std::thread([this] {
    if (!start())
      return;
    liveness.start(table.rank, table.size);
    {
      std::lock_guard<std::mutex> lock(mutex);
      started = true;
    }
    forRank.notify_all();
    loop();
  });
  std::unique_lock<std::mutex> lock(mutex);
  forRank.wait(lock, [&] { return started || !failure.empty(); });
  if (started)
    return "";
  lock.unlock();
  thread.join();
  return failure;
}

void ProcessTransport::fillTable() {
  using Self = ProcessTransport;
  table.self = this;
  table.send = [](void *self, const void *data, int64_t bytes, int32_t peer,
                  int32_t tag, int64_t *request) {
    return static_cast<Self *>(self)->begin(
        {Command::Send, data, nullptr, bytes, peer, tag}, request);
  };
  table.receive = [](void *self, void *data, int64_t bytes, int32_t peer,
                     int32_t tag, int64_t *request) {
    return static_cast<Self *>(self)->begin(
        {Command::Receive, nullptr, data, bytes, peer, tag}, request);
  };
  table.wait = [](void *self, int64_t request, mgq_span *span) {
    return static_cast<Self *>(self)->wait(request, span);
  };
  table.test = [](void *self, int64_t request, int32_t *done, mgq_span *span) {
    return static_cast<Self *>(self)->test(request, done, span);
  };
  table.wait_any = [](void *self, const int64_t *requests, int32_t count) {
    return static_cast<Self *>(self)->waitAny(requests, count);
  };
  table.all_gather = [](void *self, const void *mine, int64_t bytes,
                        void *all) {
    int64_t request;
    int32_t status = static_cast<Self *>(self)->begin(
        {Command::AllGather, mine, all, bytes, -1, 0}, &request);
    return status ? status : static_cast<Self *>(self)->wait(request, nullptr);
  };
  table.error = [](void *self) {
    return static_cast<Self *>(self)->errorText.c_str();
  };
  table.abort = [](void *self, const char *message) {
    static_cast<Self *>(self)->abort(message);
  };
  table.close = [](void *self) { static_cast<Self *>(self)->close(); };
}

int32_t ProcessTransport::fault(std::string text) {
  errorText = std::move(text);
  return 1;
}

/// Hands a command to the thread; `mutex` is held by the caller.
void ProcessTransport::enqueue(const Command &command, int64_t *request) {
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

int32_t ProcessTransport::begin(const Command &command, int64_t *request) {
  if (command.kind == Command::AllGather && command.bytes > INT_MAX)
    return fault("a gather of " + std::to_string(command.bytes) +
                 " bytes is too long");
  liveness.noteCall();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (!failure.empty())
      return fault(failure);
    if (command.peer >= table.size)
      return fault("rank " + std::to_string(table.rank) +
                   " has a message for rank " + std::to_string(command.peer) +
                   " of " + std::to_string(table.size));
    enqueue(command, request);
  }
  wake();
  return 0;
}

/// Sleeps until one of some commands is done; `mutex` is held by the caller.
int32_t ProcessTransport::sleepUntilAny(std::unique_lock<std::mutex> &lock,
                                        const int64_t *wanted, int32_t count) {
  auto ready = [&] {
    return !failure.empty() ||
           std::any_of(wanted, wanted + count,
                       [&](int64_t i) { return commands[i].done; });
  };
  const Command &oldest = commands[wanted[0]];
  bool gathers = oldest.kind == Command::AllGather;
  int peer = gathers ? Liveness::everybody : oldest.peer;
  liveness.setWaitsFor(peer);
  // Without a limit: longer than any run.
  auto span =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
          timeout > 0 ? std::min(timeout, 1e8) : 1e8));
  auto limit = Clock::now() + span;
  while (!forRank.wait_until(lock, limit, ready)) {
    limit = liveness.lifeOf(peer) + span;
    if (limit > Clock::now())
      continue;
    int waiting = table.rank, awaited = peer;
    liveness.followWaits(waiting, awaited);
    char text[160], name[32] = "the others";
    if (awaited >= 0)
      snprintf(name, sizeof name, "rank %d", awaited);
    snprintf(text, sizeof text,
             "rank %d waits for %s: no sign of life for %g s", waiting, name,
             timeout);
    return fault(text);
  }
  liveness.setWaitsFor(-1);
  return failure.empty() ? 0 : fault(failure);
}

/// Fails if a rank is silent that others may wait for.
int32_t ProcessTransport::findSilent() {
  int silent = timeout > 0 ? liveness.silentFor(timeout) : -1;
  if (silent < 0)
    return 0;
  char text[160];
  snprintf(text, sizeof text,
           "rank %d waits for rank %d: no sign of life for %g s", table.rank,
           silent, timeout);
  return fault(text);
}

/// Gives back a command that is done; `mutex` is held by the caller.
void ProcessTransport::endCommand(int64_t request, mgq_span *span) {
  if (span)
    *span = commands[request].span;
  unused.push_back(request);
}

int32_t ProcessTransport::wait(int64_t request, mgq_span *span) {
  liveness.noteCall();
  std::unique_lock<std::mutex> lock(mutex);
  if (request < 0 && !failure.empty())
    return fault(failure);
  if (request < 0)
    return request == -1 ? 0 : findSilent();
  if (!commands[request].done)
    if (int32_t status = sleepUntilAny(lock, &request, 1))
      return status;
  endCommand(request, span);
  return 0;
}

int32_t ProcessTransport::test(int64_t request, int32_t *done, mgq_span *span) {
  liveness.noteCall();
  std::lock_guard<std::mutex> lock(mutex);
  *done = commands[request].done;
  if (!*done)
    return failure.empty() ? 0 : fault(failure);
  endCommand(request, span);
  return 0;
}

int32_t ProcessTransport::waitAny(const int64_t *requests, int32_t count) {
  liveness.noteCall();
  std::unique_lock<std::mutex> lock(mutex);
  return sleepUntilAny(lock, requests, count);
}

/// Ends the process with the fault that was first: its own, or another rank's.
void ProcessTransport::abort(const char *message) {
  std::string text = message;
  int64_t request;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (failedByPeer)
      text = failure;
    enqueue({Command::Abort, text.c_str()}, &request);
  }
  fprintf(stderr, "error: %s\n", text.c_str());
  fflush(nullptr);
  wake();
  std::unique_lock<std::mutex> lock(mutex);
  forRank.wait_for(lock, abortTime, [&] { return commands[request].done; });
  _exit(1);
}

void ProcessTransport::close() {
  int64_t request;
  if (begin({Command::Close}, &request) == 0)
    thread.join();
  else
    thread.detach();
}

//===--- The communication thread -----------------------------------------===//

void ProcessTransport::fail(const std::string &text) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failure.empty())
    failure = text;
  forRank.notify_all();
}

void ProcessTransport::failByPeer(const std::string &text) {
  std::lock_guard<std::mutex> lock(mutex);
  if (failure.empty()) {
    failure = text;
    failedByPeer = true;
  }
  forRank.notify_all();
}

void ProcessTransport::endProcess() {
  std::lock_guard<std::mutex> lock(mutex);
  fprintf(stderr, "error: %s\n", failure.c_str());
  _exit(1);
}

Command &ProcessTransport::commandAt(int64_t index) {
  // The rank may be adding commands.
  std::lock_guard<std::mutex> lock(mutex);
  return commands[index];
}

void ProcessTransport::finish(Command *const *finished, size_t count) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < count; ++i) {
      finished[i]->done = true;
      finished[i]->span.end = seconds();
    }
  }
  forRank.notify_all();
}

mgq_transport *mgq::process::openTransport(ProcessTransport *transport,
                                           int32_t abiVersion, char *error,
                                           int64_t errorBytes) {
  std::string fault;
  if (abiVersion != MGQ_ABI_VERSION)
    fault = "the plugin is of version " + std::to_string(MGQ_ABI_VERSION) +
            " of the runtime, the program of version " +
            std::to_string(abiVersion);
  else
    fault = transport->open();
  if (fault.empty())
    return &transport->table;
  snprintf(error, static_cast<size_t>(errorBytes), "%s", fault.c_str());
  return nullptr;
}
