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
  cl::opt<int64_t> dropWait{
      "test-drop-wait",
      cl::desc("test only: leave out a wait, see pipe-test-drop-wait"),
      cl::init(-1), cl::ReallyHidden, cl::cat(category)};
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
  cl::opt<std::string> microBatches{
      "micro-batches",
      cl::desc("per step and replica; a range with --global-batch: adaptive"),
      cl::value_desc("N|MIN:MAX"), cl::init("1"), cl::cat(category)};
  cl::opt<int64_t> globalBatch{
      "global-batch",
      cl::desc("samples a step; binds a symbolic leading dimension"),
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
  cl::list<std::string> precisionOf{
      "precision-of", cl::desc("what products of a parameter or layer take"),
      cl::value_desc("GLOB=f32|bf16"), cl::cat(category)};
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
  cl::opt<std::string> overlap{
      "overlap",
      cl::desc(
          "on or off: gradients are summed over replicas while backward runs"),
      cl::init("on"), cl::cat(category)};
  cl::opt<int64_t> bucketSize{
      "bucket-size", cl::desc("bytes of gradients that are summed together"),
      cl::value_desc("BYTES"), cl::init(0), cl::cat(category)};
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

/// Flags that the other target's code generation reads are wrong usage.
static ExitStatus checkTarget(const Flags &flags) {
  struct Only {
    const cl::Option &flag;
    StringRef target;
  };
  const Only all[] = {{flags.cpu, "cpu"},
                      {flags.gpuArch, "cuda"},
                      {flags.cudaToolkit, "cuda"},
                      {flags.emitTwins, "cuda"}};
  for (const Only &only : all)
    if (only.flag.getNumOccurrences() && flags.target != only.target)
      return usage("--" + only.flag.ArgStr + " needs --target=" + only.target);
  return kSuccess;
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
                         overlaps[] = {"on", "off"},
                         compressions[] = {"none", "bf16", "sparse24",
                                           "sparse24-int8"},
                         cpus[] = {"native", "x86-64-v3", "x86-64-v4",
                                   "x86-64-v4-bf16"};
  auto first = [](ArrayRef<StringRef> words, size_t n) {
    return words.take_front(n);
  };
  // A plan needs no code for what it plans.
  bool hasPlan = flags.plan.getNumOccurrences() != 0;
  const Word words[] = {{flags.target, targets, targets},
                        {flags.cpu, cpus, cpus},
                        {flags.schedule, schedules, schedules},
                        {flags.partition, partitions, partitions},
                        {flags.precision, precisions, precisions},
                        {flags.edges, edges, first(edges, 1)},
                        {flags.recompute, recomputes, recomputes},
                        {flags.frozen, frozens, frozens},
                        {flags.overlap, overlaps, overlaps},
                        {flags.compression, compressions, compressions}};
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
  };
  constexpr int64_t any = INT64_MAX;
  const Number numbers[] = {
      {flags.stages, 1, kMostRanks}, {flags.replicas, 1, kMostRanks},
      {flags.ranks, 1, kMostRanks},  {flags.chunks, 1, kMostRanks},
      {flags.bucketSize, 1, any},    {flags.fp32Steps, 0, any},
      {flags.bf16Ramp, 0, any}};
  for (const Number &number : numbers) {
    int64_t value = number.flag.getValue();
    if (number.flag.getNumOccurrences() && value < number.least)
      return usage("--" + number.flag.ArgStr + "=" + Twine(value) +
                   ": expected " + Twine(number.least) + " or more");
    if (value > number.most)
      return usage("--" + number.flag.ArgStr + "=" + Twine(value) +
                   ": expected at most " + Twine(number.most));
  }
  StringRef schedule = flags.schedule.getValue();
  if (flags.chunks > 1 && (schedule == "gpipe" || schedule == "one_f_one_b"))
    return usage("--chunks=" + Twine(flags.chunks.getValue()) + ": " +
                 schedule + " has one chunk a rank; expected " +
                 "--schedule=interleaved, zero_bubble or auto");
  for (StringRef text : flags.precisionOf) {
    auto [glob, precision] = text.rsplit('=');
    if (glob.empty() || (precision != "f32" && precision != "bf16"))
      return usage("--precision-of=" + text +
                   ": expected GLOB=f32 or GLOB=bf16");
  }
  if ((flags.fp32Steps > 0 || flags.bf16Ramp > 0) && flags.precision == "f32" &&
      flags.precisionOf.empty())
    return usage("--fp32-steps and --bf16-ramp: with --precision=f32 all steps "
                 "are in f32; expected --precision=layered or bf16");
  if (flags.target == "cuda" && !hasPlan) {
    if (StringRef(flags.microBatches).contains(':'))
      return notYet("--micro-batches=" + flags.microBatches +
                        " with --target=cuda",
                    "--micro-batches=N");
  }
  for (const std::string &arch : flags.gpuArch)
    if (!kernels::isCudaArchitecture(arch))
      return usage(
          "--gpu-arch=" + arch +
          ": expected sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_100, "
          "sm_103, sm_110, sm_120 or sm_121");
  if (ExitStatus status = checkTarget(flags))
    return status;
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

/// A number of micro-batches, false if it is none or out of range.
static bool parseMicroBatches(StringRef text, int64_t &number) {
  return !text.getAsInteger(10, number) && number >= 1 &&
         number <= kMostMicroBatches;
}

/// --micro-batches=N or MIN:MAX, --global-batch=N.
static ExitStatus readMicroBatches(const Flags &flags, Options &options) {
  options.globalBatch = flags.globalBatch;
  if (flags.globalBatch.getNumOccurrences() && options.globalBatch < 1)
    return usage("--global-batch=" + Twine(options.globalBatch) +
                 ": expected 1 or more");
  StringRef text = flags.microBatches;
  if (!text.contains(':')) {
    if (parseMicroBatches(text, options.microBatches))
      return kSuccess;
    return usage("--micro-batches=" + text + ": expected a number from 1 to " +
                 Twine(kMostMicroBatches));
  }
  auto [least, most] = text.split(':');
  if (!parseMicroBatches(least, options.leastMicroBatches) ||
      !parseMicroBatches(most, options.mostMicroBatches) ||
      options.leastMicroBatches > options.mostMicroBatches)
    return usage("--micro-batches=" + text + ": expected MIN:MAX, from 1 to " +
                 Twine(kMostMicroBatches));
  if (!options.globalBatch)
    return usage("--micro-batches=" + text + " needs --global-batch=N");
  // Each number's program has residuals of its own.
  if (flags.compression.getValue() != "none")
    return notYet("--gradient-compression=" + flags.compression +
                      " with --micro-batches=" + text,
                  "--micro-batches=N");
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
  if (ExitStatus status = readMicroBatches(flags, options))
    return status;
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
  options.fp32Steps = flags.fp32Steps;
  options.bf16Ramp = flags.bf16Ramp;
  options.precisionOf.assign(flags.precisionOf.begin(),
                             flags.precisionOf.end());
  options.frozen = flags.frozen;
  options.compression = flags.compression;
  options.overlap = flags.overlap == "on";
  options.bucketSize = flags.bucketSize;
  options.plan = flags.plan.getNumOccurrences() != 0;
  options.planFile = flags.plan;
  options.planTimeline = flags.planTimeline;
  options.target = flags.target;
  options.cpu = flags.cpu;
  if (!flags.gpuArch.empty())
    options.gpuArchs.clear();
  for (const std::string &arch : flags.gpuArch) // each once
    if (!llvm::is_contained(options.gpuArchs, arch))
      options.gpuArchs.push_back(arch);
  options.cudaToolkit = flags.cudaToolkit;
  options.emitTwins = flags.emitTwins;
  options.dropWait = flags.dropWait;
  options.recompute = flags.recompute;
  options.stopAfter = flags.stopAfter;
  options.dumpIr = flags.dumpIr;
  options.saveTemps = flags.saveTemps;
  options.verbose = flags.verbose;
  return kSuccess;
}
