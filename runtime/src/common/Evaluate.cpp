//===- Evaluate.cpp - Forward passes over a data set ----------------------===//

#include "runtime/src/common/Evaluate.h"
#include <algorithm>
#include <numeric>

using namespace mgq::rt;

// Micro-batches of a replica between two gathers.
static constexpr int64_t blockRounds = 256;

/// The single element of an output.
static double scalarValue(const mgq_output &output, const std::byte *data) {
  if (!isFloat(output.tensor.type))
    return static_cast<double>(integerAt(output.tensor.type, data, 0));
  float value = 0;
  convertToFloat(output.tensor.type, data, &value, 1);
  return static_cast<double>(value);
}

/// The first stage that has an output after evaluation, -1: none.
static int32_t stageOfOutput(const mgq_program &program, int32_t output) {
  for (int32_t stage = 0; stage < program.stages; ++stage) {
    const mgq_rank &rank = program.ranks[stage];
    for (int32_t i = 0; i < rank.output_count; ++i)
      if (rank.outputs[i].output == output &&
          rank.outputs[i].place.space != MGQ_SPACE_NONE)
        return stage;
  }
  return -1;
}

Evaluator::Evaluator(const RankView &view, bool byTokens, Executor &executor,
                     Group &group, Trace &trace)
    : view(view), program(view.program), executor(executor), group(group),
      reducer(view, view.tables.evaluate_ops, view.tables.evaluate_op_count,
              executor, group, trace, nullptr),
      ops(view, view.tables.evaluate_ops, view.tables.evaluate_op_count,
          executor, group, trace, &reducer),
      byTokens(byTokens), lossRank(lossStage(view.program)),
      cells(executor.device(), 2),
      scalarCells(executor.device(), view.program.output_count) {
  Slots none(view.tables.chunk_count, -1);
  count = &executor.prepare(view.tables.count, -1, none);
  countPlace = reinterpret_cast<const float *>(executor.resolve(
      view.tables.count_place, sizeof(float), none, "the count of targets"));
  Slots slots(view.tables.chunk_count, -1);
  for (const OpList::Entry &entry : ops.entries())
    if (entry.op->chunk >= 0 && entry.op->slot >= 0)
      slots[entry.op->chunk] = entry.op->slot;
  for (int32_t i = 1; i < program.output_count; ++i) {
    const mgq_output &output = program.outputs[i];
    int32_t stage = stageOfOutput(program, i);
    if (elementCount(shapeOf(output.tensor)) != 1 || stage < 0)
      continue;
    scalars.push_back(i);
    scalarRanks.push_back(stage);
    scalarAt.push_back(nullptr);
    for (int32_t j = 0; j < view.tables.output_count; ++j)
      if (view.tables.outputs[j].output == i && stage == view.stage)
        scalarAt.back() =
            executor.resolve(view.tables.outputs[j].place, output.tensor.bytes,
                             slots, output.name);
  }
  width = 2 + static_cast<int64_t>(scalars.size());
  records.resize(recordsPerMicroBatch(program));
}

void Evaluator::record() {
  for (const OpList::Entry &entry : ops.entries())
    if (entry.op->kind == MGQ_OP_EVALUATE)
      executor.record(*entry.runnable);
}

void Evaluator::runMicroBatch(const DataReader &data, int64_t number,
                              double *values) {
  std::iota(records.begin(), records.end(),
            number * static_cast<int64_t>(records.size()));
  RecordList micro{records.data(), static_cast<int32_t>(records.size())};
  Device &device = executor.device();
  cells[0] = 0;
  cells[1] = 1;
  if (program.loss_is_sum) {
    executor.load(*count, data, micro, RandomKey());
    executor.run(*count, Phase::Count, -1);
    device.read(&cells[1], countPlace, sizeof(float));
  }
  reducer.startStep();
  for (OpList::Entry &entry : ops.entries()) {
    ops.waitBefore(entry);
    if (entry.op->kind == MGQ_OP_SEND || entry.op->kind == MGQ_OP_RECEIVE ||
        isCollective(*entry.op)) {
      ops.begin(entry);
    } else if (entry.op->kind == MGQ_OP_EVALUATE) {
      executor.load(*entry.runnable, data, micro, RandomKey());
      executor.run(*entry.runnable, Phase::Evaluate, -1);
      if (entry.loss)
        device.read(&cells[0], entry.loss, sizeof(float));
    } else {
      fail("the program's tables are damaged: an evaluation trains");
    }
  }
  ops.waitAll();
  for (size_t i = 0; i < scalars.size(); ++i)
    if (scalarAt[i])
      device.read(&scalarCells[i], scalarAt[i],
                  program.outputs[scalars[i]].tensor.bytes);
  device.synchronize();
  executor.collectTimes();
  std::copy(cells.begin(), cells.end(), values);
  for (size_t i = 0; i < scalars.size(); ++i)
    if (scalarAt[i])
      values[2 + i] =
          scalarValue(program.outputs[scalars[i]], scalarCells[i].bytes);
}

/// Adds a micro-batch from the values of the ranks of its replica.
void Evaluator::addMicroBatch(const double *ofReplica, int64_t round,
                              Evaluation &sum) {
  auto valueOf = [&](int32_t stage, int64_t value) {
    return ofReplica[(stage * blockRounds + round) * width + value];
  };
  double loss = valueOf(lossRank, 0), counted = valueOf(lossRank, 1);
  if (counted != 0)
    sum.loss += byTokens ? loss : loss / counted;
  weight += byTokens ? counted : 1;
  for (size_t i = 0; i < scalars.size(); ++i)
    sum.scalars[i] += valueOf(scalarRanks[i], 2 + static_cast<int64_t>(i));
}

Evaluation Evaluator::run(const DataReader &data) {
  Evaluation result{0, std::vector<double>(scalars.size())};
  int64_t size = blockRounds * width, replicas = program.replicas;
  int64_t total = data.records() / static_cast<int64_t>(records.size());
  block.resize(size);
  allBlocks.resize(size * group.size());
  unused.resize(width);
  weight = 0;
  int64_t perBlock = blockRounds * replicas;
  for (int64_t begin = 0; begin < total; begin += perBlock) {
    int64_t end = std::min(total, begin + perBlock);
    std::fill(block.begin(), block.end(), 0.0);
    for (int64_t round = 0, first; (first = begin + round * replicas) < end;
         ++round) {
      int64_t micro = first + view.replica;
      if (micro < end)
        runMicroBatch(data, micro, block.data() + round * width);
      else if (!reducer.empty()) // Others need its slices.
        runMicroBatch(data, first, unused.data());
    }
    group.allGather(block.data(), size * static_cast<int64_t>(sizeof(double)),
                    allBlocks.data());
    for (int64_t i = begin; i < end; ++i)
      addMicroBatch(allBlocks.data() +
                        (i - begin) % replicas * program.stages * size,
                    (i - begin) / replicas, result);
  }
  if (weight != 0)
    result.loss /= weight;
  for (double &scalar : result.scalars)
    scalar /= static_cast<double>(total);
  return result;
}
