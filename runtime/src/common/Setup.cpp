//===- Setup.cpp - What ranks agree on before they train ------------------===//

#include "runtime/src/common/Setup.h"
#include "runtime/src/common/Trace.h"
#include <algorithm>
#include <cstring>
#include <sched.h>
#include <thread>
#include <unistd.h>

using namespace mgq::rt;

static uint64_t hashText(uint64_t hash, const std::string &text) {
  hash = mgq_hash(hash, text.data(), static_cast<int64_t>(text.size()));
  return mgq_hash(hash, "", 1);
}

void mgq::rt::checkSameProgram(const mgq_program &program, Group &group) {
  // Of one size in all versions, so that any two programs understand it.
  struct Identity {
    uint64_t version, plan;
  };
  Identity mine = {
      static_cast<uint64_t>(program.abi_version),
      hashText(MGQ_HASH_START, program.plan_hash ? program.plan_hash : "")};
  std::vector<Identity> all = group.allGather(mine);
  for (int32_t rank = 0; rank < group.size(); ++rank)
    if (all[rank].version != all[0].version || all[rank].plan != all[0].plan)
      throw CommonError(fmt::format("rank {} runs another executable than rank "
                                    "0; all ranks must run the same one",
                                    rank));
}

namespace {
/// An option by name, with a hash of its value.
struct Agreed {
  const char *name;
  uint64_t hash;
};
} // namespace

template <typename T>
static Agreed agreed(const char *name, const T &value) {
  return {name, hashText(MGQ_HASH_START, fmt::format("{}", value))};
}

static std::vector<Agreed> agreedOptions(const Options &o) {
  std::vector<Agreed> list = {
      agreed("--data", o.data.size()),
      agreed("--steps", o.steps.value_or(-1)),
      agreed("--epochs", o.epochs.value_or(-1)),
      agreed("--shuffle", o.shuffle),
      agreed("--seed", o.seed),
      agreed("--learning-rate", o.learningRate),
      agreed("--weight-decay", o.weightDecay),
      agreed("--adam-beta1", o.beta1),
      agreed("--adam-beta2", o.beta2),
      agreed("--adam-epsilon", o.epsilon),
      agreed("--no-decay", fmt::format("{}", fmt::join(o.noDecay, ","))),
      agreed("--lr-scheduler-type", static_cast<int>(o.schedule)),
      agreed("--warmup-steps", o.warmupSteps),
      agreed("--warmup-ratio", o.warmupRatio),
      agreed("--min-learning-rate", o.minLearningRate),
      agreed("--max-grad-norm",
             fmt::format("{} {}", static_cast<int>(o.clip), o.clipValue)),
      agreed("--loss-reduction", static_cast<int>(o.reduction)),
      agreed("--loss-scale", fmt::format("{} {}", static_cast<int>(o.lossScale),
                                         o.lossScaleValue)),
      agreed("--on-nonfinite", o.skipNonfinite),
      agreed("--adapt-every", o.adaptEvery.value_or(-1)),
      agreed("--compression-warmup", o.compressionWarmup),
      agreed("--cache-frozen", o.cacheFrozen.empty()       ? 0
                               : o.cacheFrozen == "memory" ? 1
                                                           : 2),
      agreed("--eval-data", o.evalData.size()),
      agreed("--eval-steps", o.evalSteps),
      agreed("--dry-run", o.dryRun)};
  std::string rates;
  for (const auto &[glob, rate] : o.learningRateOf)
    rates += fmt::format("{}={},", glob, rate);
  list.push_back(agreed("--learning-rate-of", rates));
  return list;
}

void mgq::rt::checkSameOptions(const Options &options, Group &group) {
  std::vector<Agreed> list = agreedOptions(options);
  std::vector<uint64_t> mine, all(list.size() * group.size());
  for (const Agreed &option : list)
    mine.push_back(option.hash);
  group.allGather(mine.data(), static_cast<int64_t>(mine.size() * 8),
                  all.data());
  for (int32_t rank = 1; rank < group.size(); ++rank)
    for (size_t i = 0; i < list.size(); ++i)
      if (all[rank * list.size() + i] != all[i])
        throw CommonError(fmt::format("rank {} has another {} than rank 0; "
                                      "start all ranks with the same options",
                                      rank, list[i].name));
}

static void checkSameNumber(int64_t number, const std::string &what,
                            Group &group) {
  std::vector<int64_t> all = group.allGather(number);
  for (int32_t rank = 1; rank < group.size(); ++rank)
    if (all[rank] != all[0])
      throw CommonError(fmt::format("rank {} has {} {}, rank 0 has {}", rank,
                                    all[rank], what, all[0]));
}

void mgq::rt::checkSameData(const DataReader &data, const char *option,
                            Group &group) {
  checkSameNumber(data.records(), fmt::format("records of {}", option), group);
  std::vector<uint64_t> all = group.allGather(data.fingerprint());
  for (int32_t rank = 1; rank < group.size(); ++rank)
    if (all[rank] != all[0])
      throw CommonError(fmt::format("rank {} has other values in {} than rank "
                                    "0; all ranks must read the same data",
                                    rank, option));
}

Orders mgq::rt::ordersOf(const Options &options) {
  return {!options.resume.empty(),  !options.outputDir.empty(),
          !options.trace.empty(),   !options.profile.empty(),
          !options.summary.empty(), !options.dumpGradients.empty(),
          !options.replay.empty(),  options.saveSteps};
}

/// This rank's clock against rank 0's: all leave a gather at the same time,
/// give or take what a message takes; the best of several counts.
static double measureClock(Group &group) {
  double offset = 0, shortest = HUGE_VAL;
  for (int round = 0; round < 10; ++round) {
    double before = secondsNow();
    group.allGather(round);
    double after = secondsNow();
    std::vector<double> all = group.allGather(after);
    if (after - before < shortest) {
      shortest = after - before;
      offset = all[0] - after;
    }
  }
  return offset;
}

Host mgq::rt::findHost(int64_t arenaBytes, Group &group) {
  struct Word {
    uint64_t host;
    int64_t bytes;
    cpu_set_t cpus;
  };
  Word mine = {MGQ_HASH_START, arenaBytes, {}};
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  mine.host = hashText(mine.host, name);
  if (sched_getaffinity(0, sizeof mine.cpus, &mine.cpus) != 0)
    for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i)
      CPU_SET(i, &mine.cpus);
  std::vector<Word> all = group.allGather(mine);
  Host host;
  host.ranksHere = 0;
  host.firstHere = -1;
  int sharing = 0;
  for (int32_t rank = 0; rank < group.size(); ++rank) {
    const Word &word = all[rank];
    if (word.host != mine.host) {
      host.single = false;
      continue;
    }
    if (host.firstHere < 0)
      host.firstHere = rank;
    host.place += rank < group.rank();
    ++host.ranksHere;
    host.bytesHere += word.bytes;
    cpu_set_t common;
    CPU_AND(&common, &word.cpus, &mine.cpus);
    sharing += CPU_COUNT(&common) > 0;
  }
  host.threads = std::max(1, CPU_COUNT(&mine.cpus) / std::max(1, sharing));
  // The clocks of one machine are one.
  if (!host.single)
    host.clockOffset = measureClock(group);
  return host;
}
