//===- Phases.cpp - The road of a model, phase by phase -------------------===//

#include "compiler/Pipelines/Phases.h"

#include "passes/Kernels/Cuda/Pipeline.h"
#include "passes/Kernels/Passes.h"
#include "passes/Kernels/Pipeline.h"
#include "passes/NN/Passes.h"
#include "passes/Pipe/Passes.h"
#include "passes/Pipe/PlanModel.h"

#include "mlir/Transforms/Passes.h"
#include "llvm/ADT/StringSwitch.h"

using namespace mlir;
using namespace mgq;

static void buildSimplify(OpPassManager &passes, const Options &) {
  // Constants fold and dead code goes before idioms are looked for.
  passes.addPass(createCanonicalizerPass());
  passes.addPass(createCSEPass());
  passes.addPass(nn::createSimplifyPass());
  // Idioms leave dead producers, and equal masks and tables.
  passes.addPass(createCSEPass());
  passes.addPass(createCanonicalizerPass());
  passes.addPass(nn::createCheckStaticPass());
}

static void buildMark(OpPassManager &passes, const Options &options) {
  nn::MarkPassOptions mark;
  llvm::append_range(mark.trainable, options.trainable);
  llvm::append_range(mark.freeze, options.freeze);
  passes.addPass(nn::createMarkPass(std::move(mark)));
  // Uses of inputs are still visible: layers hide them.
  passes.addPass(nn::createBoundInputsPass());
  // The split of the loss leaves the division behind.
  passes.addPass(createCSEPass());
}

static void buildOutline(OpPassManager &passes, const Options &) {
  passes.addPass(nn::createOutlinePass());
}

static void buildDifferentiate(OpPassManager &passes, const Options &options) {
  nn::DifferentiatePassOptions differentiate;
  // auto saves everything here; where memory forces it, the partition repeats
  // forward calls.
  differentiate.recompute = llvm::StringSwitch<nn::Recompute>(options.recompute)
                                .Case("cheap", nn::Recompute::Cheap)
                                .Case("full", nn::Recompute::Full)
                                .Default(nn::Recompute::None);
  // Only zero_bubble runs weight gradients apart.
  differentiate.splitWeights =
      options.schedule == "zero_bubble" ? nn::SplitWeights::Always
      : options.schedule == "auto" && options.ranks > 1 && options.stages != 1
          ? nn::SplitWeights::Auto
          : nn::SplitWeights::Never;
  passes.addPass(nn::createDifferentiatePass(std::move(differentiate)));
  passes.addPass(nn::createCheckDifferentiatedPass());
  // Last of the phase: what comes after knows types only.
  nn::InsertCastsPassOptions casts;
  casts.precision = options.precision;
  llvm::append_range(casts.precisionOf, options.precisionOf);
  casts.tables = options.target != "cpu";
  casts.fp32Steps = options.fp32Steps;
  casts.bf16Ramp = options.bf16Ramp;
  passes.addPass(nn::createInsertCastsPass(std::move(casts)));
}

static void buildKernels(OpPassManager &passes, const Options &options) {
  if (!options.hasKernels())
    return; // Only a plan is asked for.
  bool isCuda = options.target == "cuda";
  // What is frozen in every call is packed once, not in every product. cuBLASLt
  // takes matrices as they are.
  if (!isCuda)
    passes.addPass(kernels::createMarkPackablePass());
  // From here on @kernels holds the code; calls outside stay on tensors.
  passes.addPass(kernels::createIsolateKernelsPass());
  if (isCuda) {
    kernels::CudaOptions cuda;
    cuda.compression = options.compression;
    kernels::buildCudaKernelPipeline(passes.nest<ModuleOp>(), cuda);
    return;
  }
  kernels::CpuOptions cpu;
  cpu.cpu = options.cpu;
  kernels::buildCpuKernelPipeline(passes.nest<ModuleOp>(), cpu);
}

static void buildPartition(OpPassManager &passes, const Options &options) {
  pipe::PlanOptions plan;
  plan.stages = options.stages;
  plan.replicas = options.replicas;
  plan.ranks = options.ranks;
  plan.microBatches = options.microBatches;
  plan.chunks = options.chunks;
  plan.schedule = options.plannedSchedule.empty() ? options.schedule
                                                  : options.plannedSchedule;
  plan.partition = options.partition;
  plan.recompute = options.recompute;
  plan.frozen = options.frozen;
  plan.overlap = options.overlap;
  plan.compression = options.compression;
  plan.splitPrefix = options.overlap && options.runAhead;
  plan.splitLayers = options.frozen == "sharded";
  plan.precision = options.precision;
  plan.target = options.target;
  plan.cluster = options.cluster;
  plan.profile = options.profile;
  plan.cuts = options.cuts;
  plan.reserveBytes = options.reserveBytes;
  passes.addPass(pipe::createPartitionStagesPass(plan, options.planned));
  // Whether a run uses it is decided when it starts.
  passes.addPass(pipe::createMarkFrozenCachePass());
}

static void buildSchedule(OpPassManager &passes, const Options &options) {
  passes.addPass(pipe::createSchedulePass());
  // Messages follow from where the ops are.
  bool isSharded = options.frozen == "sharded";
  bool copyWeights = options.target != "cpu"; // Kernels cannot read files.
  pipe::RunPrefixAheadPassOptions prefix;
  prefix.layersFirst = isSharded;
  if (options.overlap && options.runAhead)
    passes.addPass(pipe::createRunPrefixAheadPass(prefix));
  // What does not run ahead runs layer by layer all the same.
  prefix.thisStep = true;
  if (isSharded)
    passes.addPass(pipe::createRunPrefixAheadPass(prefix));
  passes.addPass(pipe::createInsertCommunicationPass());
  // Gradients lie in the arena in the order of their buckets.
  if (options.overlap) {
    pipe::OverlapStreamsPassOptions overlap;
    overlap.bucketBytes = options.bucketSize;
    passes.addPass(pipe::createOverlapStreamsPass(overlap));
  }
  if (isSharded)
    passes.addPass(pipe::createShardFrozenPass({copyWeights}));
  // All sums over replicas are there.
  if (options.compression != "none")
    passes.addPass(pipe::createSparsifyGradientsPass({options.compression}));
  // The order of a step is fixed now, so lifetimes are.
  if (options.hasKernels()) {
    passes.addPass(pipe::createPlanMemoryPass({copyWeights}));
    passes.addPass(pipe::createCheckMemoryPass());
    passes.addPass(pipe::createCheckHazardsPass());
    if (options.dropWait >= 0)
      passes.addPass(pipe::createTestDropWaitPass({options.dropWait}));
  }
  passes.addPass(pipe::createCheckMessagesPass());
}

ArrayRef<Phase> mgq::allPhases() {
  static const Phase phases[] = {
      {"import", "read the ONNX file", nullptr},
      {"simplify", "turn exporter idioms into single ops", buildSimplify},
      {"mark", "mark what trains, split the loss", buildMark},
      {"outline", "cut the graph into layer functions", buildOutline},
      {"differentiate", "build forward and backward of each layer",
       buildDifferentiate},
      {"kernels", "lower layer functions to target code", buildKernels},
      {"partition", "give layers to stages", buildPartition},
      {"schedule", "order a step, plan its memory", buildSchedule},
      {"emit", "write tables, object code and the executable", nullptr}};
  return phases;
}

bool mgq::isPhase(StringRef name) {
  return llvm::any_of(allPhases(),
                      [&](const Phase &phase) { return phase.name == name; });
}
