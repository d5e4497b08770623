//===- ProcessCheck.cpp - Messages between processes ----------------------===//
//
// Two processes of mgq-rt-process-check [BYTES]: exercise the transport of
// their launcher, with one message of BYTES at the end. Rank 0 prints "ok".
//
// Four of mgq-rt-process-check stop|chain|watch: one rank stops, the others
// wait for it in a gather, or each for the next one, or look whether all are
// alive, which must fail.
//
// Two of mgq-rt-process-check short|wide: the second expects fewer bytes, or
// gathers more, than the first has.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Group.h"
#include "runtime/src/common/Trace.h"
#include "runtime/src/local/LaunchEnvironment.h"
#include "runtime/src/local/Plugin.h"
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

using namespace mgq::rt;

static mgq_transport *connectRanks(double timeoutSeconds) {
  return openPlugin(launchEnvironment().transport, MGQ_PLUGIN_FOLDER,
                    timeoutSeconds);
}

static void require(bool condition, const char *what) {
  if (!condition)
    fail("{} is wrong", what);
}

/// Both send first, then receive in another order.
static void exchange(Group &group) {
  int32_t peer = 1 - group.rank();
  for (int round = 0; round < 100; ++round) {
    std::vector<int> sent(round * 300 + 1, round + group.rank());
    std::vector<int> a(sent.size()), b(sent.size());
    int64_t bytes = static_cast<int64_t>(sent.size()) * 4;
    std::vector<int> second(sent.size(), -round);
    int64_t requests[] = {group.send(sent.data(), bytes, peer, 5),
                          group.send(second.data(), bytes, peer, 6),
                          group.receive(b.data(), bytes, peer, 6),
                          group.receive(a.data(), bytes, peer, 5)};
    for (int64_t request : requests)
      group.wait(request);
    require(a.back() == round + peer && b.back() == -round, "a message");
  }
  int self = 1, back = 0;
  int64_t send = group.send(&self, 4, group.rank(), 4);
  group.receiveNow(&back, 4, group.rank(), 4);
  group.wait(send);
  require(back == 1, "a message to itself");
  group.sendNow(nullptr, 0, peer, 7);
  group.receiveNow(nullptr, 0, peer, 7);
}

/// What is not there yet does not block; what arrives is seen.
static void poll(Group &group) {
  int32_t peer = 1 - group.rank();
  int first = 0, second = 0, value = 3;
  std::vector<int64_t> open = {group.receive(&first, 4, peer, 5),
                               group.receive(&second, 4, peer, 6)};
  require(!group.test(open[0]), "a message that nobody sent");
  group.allGather(0);
  int64_t send = group.send(&value, 4, peer, 6);
  mgq_span span;
  while (!group.test(open[1], &span))
    group.waitAny(open);
  require(second == 3 && first == 0 && span.end > 0, "a message that came");
  group.wait(send, &span);
  require(span.begin > 0 && span.begin <= span.end, "the times of a send");
  group.allGather(0);
  group.sendNow(&value, 4, peer, 5);
  group.wait(open[0]);
}

/// A message goes on while its sender computes, and a waiting rank sleeps.
static void progress(Group &group) {
  std::vector<char> block(64 << 20, 1);
  auto bytes = static_cast<int64_t>(block.size());
  group.allGather(0);
  if (group.rank() == 0) {
    int64_t request = group.send(block.data(), bytes, 1, 8);
    for (double start = secondsNow(); secondsNow() < start + 1;)
      ;
    group.wait(request);
    usleep(800000);
    group.sendNow(block.data(), 1, 1, 9);
    return;
  }
  double start = secondsNow();
  group.receiveNow(block.data(), bytes, 0, 8);
  require(secondsNow() < start + 0.7, "progress of a message");
  std::clock_t before = std::clock(); // Of all threads.
  start = secondsNow();
  group.receiveNow(block.data(), 1, 0, 9);
  double busy = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  require(busy < 0.25 * (secondsNow() - start), "the time a sleeper takes");
}

static void large(Group &group, int64_t bytes) {
  std::vector<int32_t> block(bytes / 4);
  if (group.rank() == 0) {
    for (size_t i = 0; i < block.size(); ++i)
      block[i] = static_cast<int32_t>(i);
    return group.sendNow(block.data(), bytes, 1, 10);
  }
  group.receiveNow(block.data(), bytes, 0, 10);
  for (size_t i = 0; i < block.size(); ++i)
    require(block[i] == static_cast<int32_t>(i), "a large message");
}

/// The last rank stops; those that wait do not keep each other alive.
static int waitForStopped(const std::string &how) {
  mgq_transport *transport = connectRanks(1);
  Group group(*transport);
  group.allGather(0);
  if (group.rank() == group.size() - 1)
    raise(SIGSTOP);
  usleep(20000 * group.rank()); // Beats are to be out of step.
  try {
    while (how == "watch") {
      group.watch();
      usleep(1000);
    }
    if (how == "chain")
      group.receiveNow(nullptr, 0, group.rank() + 1, 11);
    else
      group.allGather(0);
  } catch (const Error &error) {
    transport->abort(transport->self, error.what());
  }
  return 0;
}

/// The two ranks do not agree on a message.
static int disagree(bool gathers) {
  mgq_transport *transport = connectRanks(30);
  Group group(*transport);
  std::vector<char> block(200000), all(500000);
  int64_t bytes = group.rank() == 0 ? 200000 : 100000;
  try {
    if (gathers)
      group.allGather(block.data(), bytes / 1000, all.data());
    else if (group.rank() == 0)
      group.sendNow(block.data(), bytes, 1, 12);
    else
      group.receiveNow(block.data(), bytes, 0, 12);
    group.allGather(0);
  } catch (const Error &error) {
    transport->abort(transport->self, error.what());
  }
  return 0;
}

int main(int argc, char **argv) {
  try {
    for (const char *how : {"stop", "chain", "watch"})
      if (argc > 1 && strcmp(argv[1], how) == 0)
        return waitForStopped(how);
    if (argc > 1 && strcmp(argv[1], "short") == 0)
      return disagree(false);
    if (argc > 1 && strcmp(argv[1], "wide") == 0)
      return disagree(true);
    mgq_transport *transport = connectRanks(30);
    Group group(*transport);
    exchange(group);
    poll(group);
    for (int round = 0; round < 50; ++round) {
      std::vector<int> all = group.allGather(10 * round + group.rank());
      require(all[0] == 10 * round && all[1] == 10 * round + 1, "a gather");
    }
    progress(group);
    large(group, argc > 1 ? atoll(argv[1]) : 1 << 20);
    std::vector<std::string> texts = group.gatherText("text");
    if (group.rank() == 0)
      fmt::print("{}\n", texts[1] == "text" ? "ok" : "a text is wrong");
    transport->close(transport->self);
    return 0;
  } catch (const std::exception &error) {
    printError("error: {}", error.what());
    _exit(1);
  }
}
