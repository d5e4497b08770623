//===- PlanReport.cpp - What --plan shows ---------------------------------===//

#include "compiler/Driver/PlanReport.h"

#include "passes/Pipe/ArenaLayout.h"
#include "passes/Planner/PlanText.h"
#include "passes/Planner/Report.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/ToolOutputFile.h"

using namespace mlir;
using namespace mgq;

/// Bytes of all slots of a rank.
static int64_t slotBytes(pipe::RankOp rank) {
  int64_t bytes = 0;
  for (auto slots : rank.getOps<pipe::PlaceSlotsOp>())
    bytes += int64_t(slots.getBytes()) * int64_t(slots.getCount());
  return bytes;
}

/// Bytes that compressed gradients keep from step to step.
static int64_t compressionBytes(pipe::RankOp rank) {
  int64_t bytes = 0;
  for (auto place : rank.getOps<pipe::PlaceResidualsOp>())
    if (place.getGradients())
      for (ArrayAttr pair : {*place.getWorker(), *place.getOwner()})
        for (auto range : pair.getAsRange<pipe::ArenaAttr>())
          bytes += pipe::alignBytes(range.getBytes());
  return bytes;
}

void mgq::takeExactMemory(ModuleOp module, pipe::PlannedModel &planned) {
  planned.compressionBytes.clear();
  for (auto rank : module.getOps<pipe::RankOp>()) {
    auto sizes = rank.getMemory();
    planned.compressionBytes.push_back(compressionBytes(rank));
    if (!sizes || rank.getStage() >= planned.plan.ranks.size())
      continue;
    planner::RankPlan &plan = planned.plan.ranks[rank.getStage()];
    plan.weightBytes = (*sizes)[0];
    plan.gradientBytes = (*sizes)[1];
    plan.optimizerBytes = (*sizes)[2];
    plan.fixedBytes = (*sizes)[3];
    plan.residualBytes = slotBytes(rank);
    plan.transientBytes = (*sizes)[4] - plan.residualBytes + (*sizes)[5];
  }
}

/// Bytes that a rank lacks; negative: it has them.
static int64_t lackOf(const pipe::PlannedModel &planned,
                      const planner::RankPlan &rank) {
  int64_t has = planned.cluster.devices[rank.device].memoryBytes;
  return has > 0 ? rank.memoryBytes() - has
                 : std::numeric_limits<int64_t>::min();
}

int64_t mgq::lackingBytes(const pipe::PlannedModel &planned) {
  int64_t most = 0;
  for (const planner::RankPlan &rank : planned.plan.ranks)
    most = std::max(most, lackOf(planned, rank));
  return most;
}

llvm::Error mgq::memoryError(const pipe::PlannedModel &planned) {
  for (auto [i, rank] : llvm::enumerate(planned.plan.ranks))
    if (lackOf(planned, rank) > 0) {
      const planner::Device &device = planned.cluster.devices[rank.device];
      return llvm::createStringError(
          "stage " + Twine(i) + " needs " +
          planner::byteText(rank.memoryBytes()) + ", its device " +
          device.name + " has " + planner::memoryText(device) +
          "; more stages, --recompute=full or a smaller micro-batch would "
          "make it fit");
    }
  return llvm::Error::success();
}

/// Samples of a micro-batch of a program.
static int64_t samplesOf(const Options &options,
                         const pipe::PlannedModel &program) {
  return options.globalBatch / program.plan.replicas /
         program.plan.microBatches;
}

static int64_t largestMemory(const pipe::PlannedModel &program) {
  int64_t most = 0;
  for (const planner::RankPlan &rank : program.plan.ranks)
    most = std::max(most, rank.memoryBytes());
  return most;
}

/// The programs that a run may change between.
static void printVariants(llvm::raw_ostream &os, const Options &options,
                          ArrayRef<pipe::PlannedModel *> programs,
                          size_t start) {
  os << "\nmicro-batches (of the fullest rank: memory)\n"
     << "  number  samples          step    bubble        memory\n";
  for (auto [i, program] : llvm::enumerate(programs))
    os << llvm::formatv("  {0,6}  {1,7}  {2,12}  {3,8}  {4,12}{5}\n",
                        program->plan.microBatches,
                        samplesOf(options, *program),
                        planner::secondText(program->plan.stepSeconds),
                        planner::percent(program->plan.simulation.bubble),
                        planner::byteText(largestMemory(*program)),
                        i == start ? "  at the start" : "");
}

static llvm::json::Array variantsJson(const Options &options,
                                      ArrayRef<pipe::PlannedModel *> programs) {
  llvm::json::Array variants;
  for (const pipe::PlannedModel *program : programs)
    variants.push_back(
        llvm::json::Object{{"micro_batches", program->plan.microBatches},
                           {"micro_batch_size", samplesOf(options, *program)},
                           {"step_seconds", program->plan.stepSeconds},
                           {"bubble", program->plan.simulation.bubble},
                           {"memory_bytes", largestMemory(*program)}});
  return variants;
}

/// Writes a file that appears under its name only when it is complete.
template <typename Write>
static llvm::Error writeFile(StringRef path, Write write) {
  std::error_code code;
  llvm::ToolOutputFile file(path, code, llvm::sys::fs::OF_Text);
  if (!code) {
    write(file.os());
    file.os().flush();
    code = file.os().error();
    file.os().clear_error();
  }
  if (code)
    return llvm::createStringError("cannot write " + path + ": " +
                                   code.message());
  file.keep();
  return llvm::Error::success();
}

static void printCompression(llvm::raw_ostream &os, const Options &options,
                             const pipe::PlannedModel &planned) {
  if (options.compression == "none" || planned.plan.replicas == 1)
    return;
  os << "gradient compression: " << options.compression
     << "; residuals, in the optimizer's memory:";
  for (int64_t bytes : planned.compressionBytes)
    os << " " << planner::byteText(bytes);
  os << "\n";
}

static llvm::json::Value jsonOf(const Options &options,
                                const pipe::PlannedModel &planned) {
  llvm::json::Value json =
      planner::planJson(planned.plan, planned.costs, planned.cluster);
  llvm::json::Object &plan = *json.getAsObject();
  plan["gradient_compression"] = options.compression;
  if (options.compression == "none" || planned.plan.replicas == 1)
    return json;
  for (llvm::json::Value &value : *plan.getArray("ranks")) {
    llvm::json::Object &rank = *value.getAsObject();
    rank["compression_residual_bytes"] =
        planned.compressionBytes[*rank.getInteger("stage")];
  }
  return json;
}

llvm::Error mgq::reportPlan(const Options &options,
                            ArrayRef<pipe::PlannedModel *> programs,
                            size_t start) {
  pipe::PlannedModel &planned = *programs[start];
  planner::addAlternatives(planned.plan, planned.costs, planned.cluster,
                           planned.request);
  planner::printPlan(llvm::outs(), planned.plan, planned.costs,
                     planned.cluster);
  printCompression(llvm::outs(), options, planned);
  if (programs.size() > 1)
    printVariants(llvm::outs(), options, programs, start);
  if (!options.planFile.empty()) {
    llvm::json::Value json = jsonOf(options, planned);
    if (programs.size() > 1)
      (*json.getAsObject())["variants"] = variantsJson(options, programs);
    if (llvm::Error error =
            writeFile(options.planFile, [&](llvm::raw_ostream &os) {
              os << llvm::formatv("{0:2}\n", json);
            }))
      return error;
  }
  if (!options.planTimeline.empty())
    return writeFile(options.planTimeline, [&](llvm::raw_ostream &os) {
      planner::writeTimeline(os, planned.plan, planned.costs);
    });
  return llvm::Error::success();
}
