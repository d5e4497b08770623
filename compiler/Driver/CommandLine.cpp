//===- CommandLine.cpp - Flags of mgq-compile -----------------------------===//

#include "compiler/Driver/CommandLine.h"

#include "compiler/Pipelines/Phases.h"
#include "passes/Kernels/Cuda/Images.h"
#include "passes/NN/Globs.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/WithColor.h"
#include "llvm/Support/raw_ostream.h"

using namespace llvm;
using namespace mgq;

bool mgq::parseDim(StringRef text, StringMap<int64_t> &dims) {
  auto [name, value] = text.rsplit('=');
  int64_t size;
  if (name.empty() || value.getAsInteger(10, size) || size < 1)
    return false;
  dims[name] = size;
  return true;
}

/// Beyond these a plan takes minutes.
static constexpr int64_t kMostRanks = 4096;
static constexpr int64_t kMostMicroBatches = 16384;

namespace {
/// Every flag, once: name, help, and where it goes.
struct Flags {
  cl::OptionCategory category{"mgq-compile options"};
  cl::opt<std::string> model{cl::Positional, cl::desc("MODEL.onnx"),
                             cl::cat(category)};
  cl::opt<std::string> output{"o", cl::desc("the executable to write"),
                              cl::value_desc("OUT"), cl::cat(category)};
  cl::list<std::string> trainable{
      "trainable",
      cl::desc("parameters to train, by canonical name (default: the model's "
               "metadata mgq.trainable)"),
      cl::value_desc("GLOB[,GLOB...]"), cl::cat(category)};
  cl::list<std::string> freeze{"freeze", cl::desc("taken out of the set again"),
                               cl::value_desc("GLOB[,GLOB...]"),
                               cl::cat(category)};
  cl::list<std::string> dims{"dim", cl::desc("bind a symbolic dimension"),
                             cl::value_desc("NAME=N"), cl::cat(category)};
  cl::opt<std::string> target{"target", cl::desc("cpu or cuda"),
                              cl::init(Options().target), cl::cat(category)};
  cl::opt<std::string> cpu{
      "cpu", cl::desc("native, x86-64-v3, x86-64-v4 or x86-64-v4-bf16"),
      cl::init(Options().cpu), cl::cat(category)};
  cl::list<std::string> gpuArch{
      "gpu-arch",
      cl::desc("GPUs to make code for (default: sm_80,sm_86,sm_89,sm_90)"),
      cl::value_desc("sm_80,..."), cl::CommaSeparated, cl::cat(category)};
  cl::opt<std::string> cudaToolkit{
      "cuda-toolkit",
      cl::desc("folder with bin/ptxas and nvvm/libdevice (default: $CUDA_HOME, "
               "/usr/local/cuda, or what scripts/setup.sh --cuda installed)"),
      cl::value_desc("DIR"), cl::cat(category)};
  cl::opt<std::string> emitTwins{
      "emit-twins",
      cl::desc("leave the LLVM bitcode of the kernels in DIR/HASH.bc, for "
               "tests without a GPU"),
      cl::value_desc("DIR"), cl::cat(category)};
  cl::opt<int64_t> stages{"stages",
                          cl::desc("pipeline stages (default: 1, or what is "
                                   "best for --ranks)"),
                          cl::init(0), cl::cat(category)};
  cl::opt<int64_t> replicas{"replicas",
                            cl::desc("data-parallel replicas (default: 1, or "
                                     "what is best for --ranks)"),
                            cl::init(0), cl::cat(category)};
  cl::opt<int64_t> ranks{"ranks", cl::desc("stages x replicas"), cl::init(0),
                         cl::cat(category)};
  cl::opt<std::string> schedule{
      "schedule",
      cl::desc("auto, gpipe, one_f_one_b, interleaved or zero_bubble"),
      cl::init("auto"), cl::cat(category)};
  cl::opt<int64_t> chunks{"chunks", cl::desc("chunks a rank (interleaved)"),
                          cl::init(0), cl::cat(category)};
  cl::opt<std::string> microBatches{"micro-batches",
                                    cl::desc("per step and replica"),
                                    cl::init("1"), cl::cat(category)};
  cl::opt<int64_t> globalBatch{
      "global-batch", cl::desc("samples a step, with --micro-batches=MIN:MAX"),
      cl::init(0), cl::cat(category)};
  cl::opt<std::string> partition{
      "partition", cl::desc("frozen_aware, uniform, parameters or flops"),
      cl::init("frozen_aware"), cl::cat(category)};
  cl::list<std::string> cuts{
      "cuts",
      cl::desc("first layers of the stages but the first, as --plan "
               "prints them"),
      cl::value_desc("NAME,..."), cl::CommaSeparated, cl::cat(category)};
  cl::opt<std::string> cluster{"cluster", cl::desc("devices and links (YAML)"),
                               cl::cat(category)};
  cl::opt<std::string> profile{"profile", cl::desc("measured layer times"),
                               cl::cat(category)};
  cl::opt<std::string> precision{"precision", cl::desc("f32, bf16 or layered"),
                                 cl::init("f32"), cl::cat(category)};
  cl::opt<std::string> precisionOf{"precision-of", cl::desc("GLOB=f32|bf16"),
                                   cl::cat(category)};
  cl::opt<std::string> edges{"edges", cl::desc("f32 or bf16"), cl::init("f32"),
                             cl::cat(category)};
  cl::opt<int64_t> fp32Steps{"fp32-steps",
                             cl::desc("first steps in f32 throughout"),
                             cl::init(0), cl::cat(category)};
  cl::opt<int64_t> bf16Ramp{"bf16-ramp", cl::desc("steps from f32 to bf16"),
                            cl::init(0), cl::cat(category)};
  cl::opt<std::string> recompute{
      "recompute", cl::desc("none, cheap, full or auto"),
      cl::init(Options().recompute), cl::cat(category)};
  cl::opt<std::string> frozen{"frozen",
                              cl::desc("stage, replicated, sharded or auto"),
                              cl::init("auto"), cl::cat(category)};
  cl::opt<std::string> compression{
      "gradient-compression", cl::desc("none, bf16, sparse24 or sparse24-int8"),
      cl::init("none"), cl::cat(category)};
  cl::opt<std::string> plan{"plan", cl::desc("print the plan and stop"),
                            cl::value_desc("FILE.json"), cl::ValueOptional,
                            cl::cat(category)};
  cl::opt<std::string> planTimeline{
      "plan-timeline", cl::desc("with --plan: the schedule as a picture"),
      cl::value_desc("FILE.svg"), cl::cat(category)};
  cl::opt<std::string> stopAfter{"stop-after", cl::desc("last phase to run"),
                                 cl::value_desc("PHASE"), cl::cat(category)};
  cl::opt<std::string> dumpIr{"dump-ir",
                              cl::desc("write the IR after each pass here"),
                              cl::value_desc("DIR"), cl::cat(category)};
  cl::opt<bool> saveTemps{"save-temps",
                          cl::desc("keep the object file beside OUT"),
                          cl::cat(category)};
  cl::opt<bool> verbose{"v", cl::desc("times per phase to stderr"),
                        cl::cat(category)};
};
} // namespace

static ExitStatus usage(const Twine &message) {
  WithColor::error(errs(), "mgq-compile") << message << "\n";
  errs() << "see mgq-compile --help\n";
  return kUsage;
}

static ExitStatus notYet(const Twine &what, const Twine &supported = "") {
  WithColor::error(errs(), "mgq-compile") << "not supported yet: " << what;
  if (!supported.isTriviallyEmpty())
    errs() << "; supported: " << supported;
  errs() << "\n";
  return kFailure;
}

/// A flag whose value is one of a few words.
static bool isOneOf(StringRef value, ArrayRef<StringRef> words) {
  return llvm::is_contained(words, value);
}

/// Values outside cli.md are wrong usage; values inside it that have no code
/// yet are named as such.
static ExitStatus checkFlags(const Flags &flags) {
  struct Word {
    const cl::opt<std::string> &flag;
    ArrayRef<StringRef> known, supported;
  };
  static const StringRef targets[] = {"cpu", "cuda"},
                         schedules[] = {"auto", "gpipe", "one_f_one_b",
                                        "interleaved", "zero_bubble"},
                         partitions[] = {"frozen_aware", "uniform",
                                         "parameters", "flops"},
                         precisions[] = {"f32", "bf16", "layered"},
                         edges[] = {"f32", "bf16"},
                         recomputes[] = {"none", "cheap", "full", "auto"},
                         frozens[] = {"auto", "stage", "replicated", "sharded"},
                         compressions[] = {"none", "bf16", "sparse24",
                                           "sparse24-int8"},
                         cpus[] = {"native", "x86-64-v3", "x86-64-v4",
                                   "x86-64-v4-bf16"};
  auto first = [](ArrayRef<StringRef> words, size_t n) {
    return words.take_front(n);
  };
  // A plan needs no code for what it plans.
  bool hasPlan = flags.plan.getNumOccurrences() != 0;
  auto all = [](ArrayRef<StringRef> words) { return words; };
  const Word words[] = {
      {flags.target, targets, targets},
      {flags.cpu, cpus, cpus},
      {flags.schedule, schedules, schedules},
      {flags.partition, partitions, partitions},
      {flags.precision, precisions,
       hasPlan ? all(precisions) : first(precisions, 1)},
      {flags.edges, edges, first(edges, 1)},
      {flags.recompute, recomputes, recomputes},
      {flags.frozen, frozens, first(frozens, 2)},
      {flags.compression, compressions, first(compressions, 1)}};
  for (const Word &word : words) {
    StringRef value = word.flag.getValue();
    if (!isOneOf(value, word.known))
      return usage("--" + word.flag.ArgStr + "=" + value + ": expected " +
                   llvm::join(word.known, ", "));
    if (!isOneOf(value, word.supported))
      return notYet("--" + word.flag.ArgStr + "=" + value,
                    llvm::join(word.supported, ", "));
  }
  struct Number {
    const cl::opt<int64_t> &flag;
    int64_t least, most;
    bool later; // values above the least are not supported yet
  };
  constexpr int64_t any = INT64_MAX;
  const Number numbers[] = {
      {flags.stages, 1, kMostRanks, 0}, {flags.replicas, 1, kMostRanks, 0},
      {flags.ranks, 1, kMostRanks, 0},  {flags.chunks, 1, kMostRanks, 0},
      {flags.fp32Steps, 0, any, 1},     {flags.bf16Ramp, 0, any, 1}};
  for (const Number &number : numbers) {
    int64_t value = number.flag.getValue();
    if (number.flag.getNumOccurrences() && value < number.least)
      return usage("--" + number.flag.ArgStr + "=" + Twine(value) +
                   ": expected " + Twine(number.least) + " or more");
    if (value > number.most)
      return usage("--" + number.flag.ArgStr + "=" + Twine(value) +
                   ": expected at most " + Twine(number.most));
    if (number.later && value > number.least)
      return notYet("--" + number.flag.ArgStr + "=" + Twine(value),
                    Twine(number.least));
  }
  StringRef schedule = flags.schedule.getValue();
  if (flags.chunks > 1 && (schedule == "gpipe" || schedule == "one_f_one_b"))
    return usage("--chunks=" + Twine(flags.chunks.getValue()) + ": " +
                 schedule + " has one chunk a rank; expected " +
                 "--schedule=interleaved, zero_bubble or auto");
  if (flags.precisionOf.getNumOccurrences())
    return notYet("--" + flags.precisionOf.ArgStr);
  for (const std::string &arch : flags.gpuArch)
    if (!kernels::isCudaArchitecture(arch))
      return usage("--gpu-arch=" + arch +
                   ": expected sm_80 or later, as sm_80,sm_90");
  if (flags.planTimeline.getNumOccurrences() && !hasPlan)
    return usage("--plan-timeline needs --plan");
  return kSuccess;
}

/// Stages, replicas and ranks agree; what is not given stays 0, to be chosen.
static ExitStatus readRanks(const Flags &flags, Options &options) {
  options.stages = flags.stages;
  options.replicas = flags.replicas;
  options.ranks = flags.ranks;
  if (options.ranks == 0) {
    options.stages = std::max<int64_t>(1, options.stages);
    options.replicas = std::max<int64_t>(1, options.replicas);
    options.ranks = options.stages * options.replicas;
  }
  if (options.stages && options.replicas == 0)
    options.replicas = std::max<int64_t>(1, options.ranks / options.stages);
  if (options.replicas && options.stages == 0)
    options.stages = std::max<int64_t>(1, options.ranks / options.replicas);
  if (options.stages && options.stages * options.replicas != options.ranks)
    return usage("--ranks=" + Twine(options.ranks) + " is not " +
                 Twine(options.stages) + " stages x " +
                 Twine(options.replicas) + " replicas");
  if (options.ranks > kMostRanks)
    return usage(Twine(options.stages) + " stages x " +
                 Twine(options.replicas) + " replicas: expected at most " +
                 Twine(kMostRanks) + " ranks");
  return kSuccess;
}

ExitStatus mgq::parseCommandLine(int argc, char **argv, Options &options) {
  // libLLVM registers flags of its own tools, some under our names.
  cl::ResetCommandLineParser();
  static Flags flags;
  cl::HideUnrelatedOptions(flags.category);
  cl::SetVersionPrinter(
      [](raw_ostream &os) { os << "mgq-compile " MGQ_VERSION "\n"; });
  if (!cl::ParseCommandLineOptions(
          argc, argv,
          "compiles an ONNX training graph to a training executable\n",
          &errs()))
    return kUsage;
  if (flags.model.empty())
    return usage("no MODEL.onnx given");
  if (!flags.stopAfter.empty() && !isPhase(flags.stopAfter)) {
    std::string names;
    for (const Phase &phase : allPhases())
      names += (names.empty() ? "" : ", ") + phase.name.str();
    return usage("--stop-after=" + flags.stopAfter + ": expected one of " +
                 names);
  }
  if (flags.output.empty() && flags.plan.getNumOccurrences() == 0 &&
      (flags.stopAfter.empty() || flags.stopAfter == "emit"))
    return usage("no -o OUT given");
  if (StringRef(flags.microBatches).contains(':') || flags.globalBatch != 0)
    return notYet("--micro-batches=MIN:MAX", "--micro-batches=N");
  if (StringRef(flags.microBatches).getAsInteger(10, options.microBatches) ||
      options.microBatches < 1 || options.microBatches > kMostMicroBatches)
    return usage("--micro-batches=" + flags.microBatches +
                 ": expected a number from 1 to " + Twine(kMostMicroBatches));
  for (StringRef dim : flags.dims)
    if (!parseDim(dim, options.dims))
      return usage("--dim=" + dim + ": expected NAME=N");
  if (ExitStatus status = checkFlags(flags))
    return status;
  if (ExitStatus status = readRanks(flags, options))
    return status;

  options.model = flags.model;
  options.output = flags.output;
  for (StringRef list : flags.trainable)
    llvm::append_range(options.trainable, splitGlobs(list));
  for (StringRef list : flags.freeze)
    llvm::append_range(options.freeze, splitGlobs(list));
  options.schedule = flags.schedule;
  options.chunks = flags.chunks;
  options.partition = flags.partition;
  options.cuts.assign(flags.cuts.begin(), flags.cuts.end());
  options.cluster = flags.cluster;
  options.profile = flags.profile;
  options.precision = flags.precision;
  options.frozen = flags.frozen;
  options.plan = flags.plan.getNumOccurrences() != 0;
  options.planFile = flags.plan;
  options.planTimeline = flags.planTimeline;
  options.target = flags.target;
  options.cpu = flags.cpu;
  if (!flags.gpuArch.empty())
    options.gpuArchs.assign(flags.gpuArch.begin(), flags.gpuArch.end());
  options.cudaToolkit = flags.cudaToolkit;
  options.emitTwins = flags.emitTwins;
  options.recompute = flags.recompute;
  options.stopAfter = flags.stopAfter;
  options.dumpIr = flags.dumpIr;
  options.saveTemps = flags.saveTemps;
  options.verbose = flags.verbose;
  return kSuccess;
}
