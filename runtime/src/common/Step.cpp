//===- Step.cpp - Runs one optimizer step ---------------------------------===//
//
// For a loss that is a sum over a count, valid targets are counted first, over
// all micro-batches, since each backward pass is seeded with 1 / count. A
// micro-batch without any valid target is not run: it adds exact zeros.
//
//===----------------------------------------------------------------------===//

#include "runtime/src/common/Step.h"
#include "runtime/src/common/Error.h"
#include <cmath>

using namespace mgq::rt;

/// Whether some call of `sequence` reads `input`.
static bool readsInput(const mgq_sequence &sequence, const mgq_input &input) {
  for (int32_t i = 0; i < sequence.call_count; ++i)
    for (int32_t j = 0; j < sequence.calls[i].arg_count; ++j) {
      const mgq_ref &ref = sequence.calls[i].args[j];
      if (ref.space == MGQ_SPACE_ARENA && ref.offset >= input.offset &&
          ref.offset < input.offset + std::max<int64_t>(1, input.tensor.bytes))
        return true;
    }
  return false;
}

/// All micro-batches share one set of activations, so a backward op must follow
/// its forward op.
static void checkOps(const mgq_program &program) {
  int32_t next = 0, open = -1;
  bool ok = program.micro_batches > 0, done = false;
  for (int32_t i = 0; i < program.op_count; ++i) {
    const mgq_op &op = program.ops[i];
    ok &= !done;
    if (op.kind == MGQ_OP_FORWARD) {
      ok &= open < 0 && op.micro_batch == next++;
      open = op.micro_batch;
    } else if (op.kind == MGQ_OP_BACKWARD) {
      ok &= op.micro_batch == open;
      open = -1;
    } else {
      ok &= op.kind == MGQ_OP_OPTIMIZER && open < 0;
      done = true;
    }
  }
  if (!ok || !done || next != program.micro_batches)
    fail("the program's tables are damaged: its ops are not {} micro-batches "
         "and the optimizer",
         program.micro_batches);
}

StepRunner::StepRunner(const mgq_program &program, const Options &options,
                       Arena &arena, Executor &executor, Optimizer &optimizer,
                       Clipping &clipping, Trace &trace)
    : program(program), arena(arena), executor(executor), optimizer(optimizer),
      clipping(clipping), trace(trace),
      byTokens(
          options.reduction == ReductionKind::Tokens ||
          (options.reduction == ReductionKind::Default && program.loss_is_sum)),
      skipNonfinite(options.skipNonfinite), counts(program.micro_batches),
      losses(program.micro_batches) {
  afterCall = [this](int32_t call) {
    this->optimizer.accumulate(call, isFirst);
  };
  if (byTokens && !program.loss_is_sum)
    failUsage("--loss-reduction=tokens needs a loss that is recognised as a "
              "cross-entropy; this model's is not");
  checkOps(program);
  for (int32_t i = 0; i < program.input_count; ++i)
    if (readsInput(program.count, program.inputs[i]))
      countInputs.push_back(i);
  for (int32_t i = 1; i < program.output_count; ++i)
    if (elementCount(shapeOf(program.outputs[i].tensor)) == 1)
      scalars.push_back(i);
}

void StepRunner::loadInputs(const DataReader &data, int64_t record) {
  for (int32_t i = 0; i < program.input_count; ++i)
    data.load(record, i, arena.at(program.inputs[i].offset));
}

void StepRunner::loadCountInputs(const DataReader &data, int64_t record) {
  for (int32_t i : countInputs)
    data.load(record, i, arena.at(program.inputs[i].offset));
}

double StepRunner::readCount() {
  return static_cast<double>(*arena.floatsAt(program.count_offset));
}

void StepRunner::countTargets(const StepInput &input, const DataReader &data,
                              RecordOrder &order) {
  total = 0;
  for (int32_t i = 0; i < program.micro_batches; ++i) {
    counts[i] = 1;
    if (program.loss_is_sum) {
      loadCountInputs(data, order.recordOf(input.step, i));
      executor.runCount();
      counts[i] = readCount();
    }
    total += counts[i];
  }
}

float StepRunner::seedOf(int32_t microBatch) const {
  double divisor = total;
  if (!byTokens)
    divisor = counts[microBatch] * program.micro_batches;
  return static_cast<float>(1 / divisor);
}

StepResult StepRunner::run(const StepInput &input, const DataReader &data,
                           RecordOrder &order) {
  StepResult result;
  countTargets(input, data, order);
  if (total == 0) {
    result.empty = true;
    return result;
  }
  bool first = true;
  for (int32_t i = 0; i < program.op_count; ++i) {
    const mgq_op &op = program.ops[i];
    int32_t mb = op.micro_batch;
    if (op.kind == MGQ_OP_OPTIMIZER) {
      optimize(input, result);
    } else if (counts[mb] == 0) {
      losses[mb] = 0;
    } else if (op.kind == MGQ_OP_FORWARD) {
      loadInputs(data, order.recordOf(input.step, mb));
      executor.runForward(mb);
      losses[mb] =
          static_cast<double>(*arena.floatsAt(program.loss_sum_offset));
    } else {
      *arena.floatsAt(program.seed_offset) = seedOf(mb);
      isFirst = first;
      executor.runBackward(mb, afterCall);
      first = false;
    }
  }
  for (int32_t i = 0; i < program.micro_batches; ++i)
    if (byTokens)
      result.loss += losses[i];
    else if (counts[i] != 0)
      result.loss += losses[i] / counts[i];
  result.loss /= byTokens ? total : program.micro_batches;
  return result;
}

void StepRunner::optimize(const StepInput &input, StepResult &result) {
  optimizer.combineUses();
  if (gradientHook) {
    gradientHook();
    gradientHook = nullptr;
  }
  double start = secondsNow();
  GradientNorm norm = optimizer.norm();
  result.gradNorm = norm.total;
  if (norm.firstNonfinite >= 0) {
    const char *name = program.params[norm.firstNonfinite].name;
    if (!skipNonfinite)
      fail("the gradient of parameter '{}' is not finite in step {}; "
           "--on-nonfinite=skip skips such steps",
           name, input.step + 1);
    result.nonfinite = true;
    return;
  }
  optimizer.update(clipping.factor(norm.total, input.epoch),
                   input.learningFactor, input.updates + 1);
  trace.add(Phase::Optimizer, "adamw", start, secondsNow() - start, -1);
  executor.runPrepareTrainable();
}

/// The single element of an output.
static double scalarValue(const mgq_output &output, const std::byte *data) {
  if (!isFloat(output.tensor.type))
    return static_cast<double>(integerAt(output.tensor.type, data, 0));
  float value = 0;
  convertToFloat(output.tensor.type, data, &value, 1);
  return static_cast<double>(value);
}

Evaluation StepRunner::evaluate(const DataReader &data) {
  Evaluation result{0, std::vector<double>(scalars.size())};
  double weight = 0;
  for (int64_t record = 0; record < data.records(); ++record) {
    double count = 1;
    loadInputs(data, record);
    if (program.loss_is_sum) {
      executor.runCount();
      count = readCount();
    }
    executor.runEvaluate();
    auto loss = static_cast<double>(*arena.floatsAt(program.loss_sum_offset));
    if (count != 0)
      result.loss += byTokens ? loss : loss / count;
    weight += byTokens ? count : 1;
    for (size_t i = 0; i < scalars.size(); ++i) {
      const mgq_output &output = program.outputs[scalars[i]];
      result.scalars[i] += scalarValue(output, arena.at(output.offset));
    }
  }
  if (weight != 0)
    result.loss /= weight;
  for (double &scalar : result.scalars)
    scalar /= static_cast<double>(data.records());
  return result;
}
