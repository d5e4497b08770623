//===- Launch.cpp - Starts the ranks of this process ----------------------===//

#include "runtime/src/local/Launch.h"
#include "runtime/src/common/Trainer.h"
#include "runtime/src/local/LaunchEnvironment.h"
#include "runtime/src/local/LinkTransport.h"
#include "runtime/src/local/Plugin.h"
#include "runtime/src/local/ThreadTransport.h"
#include <cstring>
#include <new>
#include <thread>
#include <unistd.h>

using namespace mgq::rt;

// How long ranks may take to notice that another has failed: one kernel.
static constexpr std::chrono::seconds grace{2};
// How long the rank at fault, or its launcher, may take to end the others.
static constexpr std::chrono::seconds peerTime{8};
static constexpr std::chrono::milliseconds peerPause{10};

int mgq::rt::reportFault(const char *text, int status) {
  printError("error: {}", text);
  return status;
}

namespace {
/// How a rank ended.
struct Outcome {
  int status = 0;
  std::string fault;    ///< With the rank's name where it has peers.
  bool isPeers = false; ///< Another rank tells of it.
};
} // namespace

/// Whose fault a text tells of: "rank 1: ...", unless it says so already or all
/// ranks have it.
static std::string nameRank(const Group &group, const char *text,
                            bool isCommon) {
  std::string prefix = fmt::format("rank {}", group.rank());
  if (group.size() == 1 || isCommon || group.isCommonFault() ||
      strncmp(text, (prefix + " ").c_str(), prefix.size() + 1) == 0)
    return text;
  return prefix + ": " + text;
}

/// Runs a rank to its end, and tells the others of a fault while the rank's
/// memory is still there.
static Outcome runRank(const mgq_program &program, const Options &options,
                       mgq_transport &transport,
                       const std::optional<LinkModel> &link) {
  std::optional<LinkTransport> linked;
  if (link)
    linked.emplace(transport, *link, program.stages);
  Group group(linked ? linked->table() : transport);
  Outcome outcome;
  outcome.status = 1;
  Trainer trainer(program, options, group);
  auto setFault = [&](const char *text, bool isCommon = false) {
    outcome.fault = nameRank(group, text, isCommon);
  };
  try {
    outcome.status = trainer.run();
    return outcome;
  } catch (const PeerError &error) {
    outcome.fault = error.what();
    outcome.isPeers = true;
  } catch (const CommonError &error) {
    // Rank 0 speaks for all; threads take their messages back besides.
    setFault(error.what(), true);
    outcome.isPeers = group.rank() != 0 && !group.inProcess();
  } catch (const UsageError &error) {
    outcome.status = 2;
    setFault(error.what());
  } catch (const std::bad_alloc &) {
    setFault("out of memory");
  } catch (const std::exception &error) {
    setFault(error.what());
  }
  trainer.endBar();
  if (!outcome.isPeers)
    group.abort(outcome.fault);
  return outcome;
}

static int reportOutcome(const Outcome &outcome) {
  return outcome.fault.empty()
             ? outcome.status
             : reportFault(outcome.fault.c_str(), outcome.status);
}

static int runThreads(const mgq_program &program, const Options &options,
                      const std::optional<LinkModel> &link) {
  int32_t ranks = rankCount(program), running = ranks;
  ThreadTransport transport(ranks, options.timeoutSeconds);
  if (ranks == 1)
    return reportOutcome(runRank(program, options, transport.end(0), link));
  std::vector<Outcome> outcomes(ranks);
  std::mutex mutex;
  std::condition_variable ended;
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Outcome outcome = runRank(program, options, transport.end(rank), link);
      std::lock_guard<std::mutex> lock(mutex);
      outcomes[rank] = std::move(outcome);
      --running;
      ended.notify_all();
    });
  {
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait(lock, [&] { return !running || transport.abortedBy() >= 0; });
    if (!ended.wait_for(lock, grace, [&] { return !running; })) {
      // One is stuck in a kernel; nothing that it may use is taken down.
      fflush(stdout);
      _exit(reportFault(transport.abortMessage().c_str(), 1));
    }
  }
  for (std::thread &thread : threads)
    thread.join();
  int32_t faulty = transport.abortedBy();
  if (faulty < 0)
    return outcomes[0].status;
  return reportFault(transport.abortMessage().c_str(),
                     std::max(1, outcomes[faulty].status));
}

/// Throws Error if there are not as many ranks as the program has.
static void checkRanks(const mgq_program &program, int32_t launched) {
  int32_t ranks = rankCount(program);
  if (launched != ranks)
    fail("the program was compiled for {} rank{}, it was launched with {}",
         ranks, ranks == 1 ? "" : "s", launched);
}

static int runProcess(const mgq_program &program, const Options &options,
                      const char *plugin,
                      const std::optional<LinkModel> &link) {
  mgq_transport *transport =
      openPlugin(plugin, program.plugin_path, options.timeoutSeconds);
  checkRanks(program, transport->size);
  Outcome outcome = runRank(program, options, *transport, link);
  if (!outcome.fault.empty()) {
    // Another rank tells this one, or its launcher ends it.
    auto limit = std::chrono::steady_clock::now() + peerTime;
    while (std::chrono::steady_clock::now() < limit &&
           transport->wait(transport->self, -1, nullptr) == 0)
      std::this_thread::sleep_for(peerPause);
    transport->abort(transport->self, outcome.fault.c_str());
    _exit(1);
  }
  transport->close(transport->self);
  return outcome.status;
}

int mgq::rt::launch(const mgq_program &program, const Options &options) {
  checkProgram(program);
  std::optional<LinkModel> link = linkOfEnvironment();
  LaunchEnvironment launched = launchEnvironment();
  if (launched.size)
    checkRanks(program, launched.size);
  if (launched.transport)
    return runProcess(program, options, launched.transport, link);
  return runThreads(program, options, link);
}
