//===- Optimizer.cpp - Gradients, norms, AdamW ----------------------------===//

#include "runtime/src/common/Optimizer.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Glob.h"
#include "runtime/src/local/ThreadPool.h"
#include <algorithm>
#include <cmath>
#include <cstring>

using namespace mgq::rt;

// 256 KiB of f32: a few microseconds of work, and a multiple of a norm block.
static constexpr int64_t pieceElements = 16 * MGQ_NORM_BLOCK;

std::vector<int32_t> mgq::rt::trainableParams(const mgq_program &program) {
  std::vector<int32_t> indices;
  for (int32_t i = 0; i < program.param_count; ++i)
    if (program.params[i].trainable)
      indices.push_back(i);
  return indices;
}

Optimizer::Optimizer(const mgq_program &program, const Options &options,
                     Arena &arena)
    : program(program), arena(arena), beta1(options.beta1),
      beta2(options.beta2), epsilon(options.epsilon),
      uses(program.param_count) {
  int64_t blocks = 0;
  for (int32_t i : trainableParams(program)) {
    int64_t count = elementCount(shapeOf(program.params[i].stored)).value();
    for (int64_t begin = 0; begin < count; begin += pieceElements) {
      int64_t size = std::min(pieceElements, count - begin);
      pieces.push_back({i, begin, size});
      firstBlock.push_back(blocks);
      blocks += (size + MGQ_NORM_BLOCK - 1) / MGQ_NORM_BLOCK;
    }
  }
  blockSums.resize(blocks);
  collectUses();
  makeGroups(options);
}

void Optimizer::collectUses() {
  for (int32_t i = 0; i < program.grad_count; ++i) {
    const mgq_grad &grad = program.grads[i];
    const mgq_param &param = program.params[grad.param];
    bool first = uses[grad.param].empty();
    if (!param.trainable || (grad.accumulator == param.grad_offset) != first)
      fail("the program's tables are damaged: gradient of parameter '{}'",
           param.name);
    uses[grad.param].push_back(grad);
    if (grad.after < 0 || grad.after > program.backward.call_count)
      fail("the program's tables are damaged: gradient of parameter '{}' after "
           "call {}",
           param.name, grad.after);
    left.resize(std::max<size_t>(left.size(), grad.after + 1));
    for (const Piece &piece : pieces)
      if (piece.param == grad.param)
        left[grad.after].push_back({grad, piece.begin, piece.count});
  }
}

/// Trainable parameters that `glob` matches; none is an error.
static std::vector<int32_t> matches(const mgq_program &program,
                                    const char *option,
                                    const std::string &glob) {
  std::vector<int32_t> found;
  std::vector<std::string> names;
  for (int32_t i : trainableParams(program)) {
    names.emplace_back(program.params[i].name);
    if (globMatches(glob, names.back()))
      found.push_back(i);
  }
  if (found.empty())
    fail("{}: '{}' matches no trainable parameter; nearest: {}", option, glob,
         fmt::join(nearestNames(glob, names), ", "));
  return found;
}

void Optimizer::makeGroups(const Options &options) {
  groups.assign(program.param_count,
                {options.learningRate, options.weightDecay});
  for (const std::string &glob : options.noDecay)
    for (int32_t i : matches(program, "--no-decay", glob))
      groups[i].weightDecay = 0;
  for (const auto &[glob, rate] : options.learningRateOf)
    for (int32_t i : matches(program, "--learning-rate-of", glob))
      groups[i].learningRate = rate;
}

void Optimizer::accumulate(int32_t call, bool first) {
  if (static_cast<size_t>(call) >= left.size())
    return;
  parallelFor(static_cast<int64_t>(left[call].size()), [&](int64_t index) {
    const UsePiece &piece = left[call][index];
    float *sum = arena.floatsAt(piece.use.accumulator) + piece.begin;
    const float *values = arena.floatsAt(piece.use.offset) + piece.begin;
    if (first)
      memcpy(sum, values, piece.count * sizeof(float));
    else
      program.accumulate(sum, values, piece.count);
  });
}

void Optimizer::combineUses() {
  parallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece &piece = pieces[index];
    const std::vector<mgq_grad> &list = uses[piece.param];
    for (size_t i = 1; i < list.size(); ++i)
      program.accumulate(arena.floatsAt(list[0].accumulator) + piece.begin,
                         arena.floatsAt(list[i].accumulator) + piece.begin,
                         piece.count);
  });
}

GradientNorm Optimizer::norm() {
  parallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece &piece = pieces[index];
    const float *values =
        arena.floatsAt(program.params[piece.param].grad_offset) + piece.begin;
    double *sums = blockSums.data() + firstBlock[index];
    for (int64_t i = 0; i < piece.count; i += MGQ_NORM_BLOCK)
      *sums++ = program.sq_norm(
          values + i, std::min<int64_t>(MGQ_NORM_BLOCK, piece.count - i));
  });
  GradientNorm result{0, -1};
  size_t block = 0;
  for (size_t i = 0; i < pieces.size();) {
    int32_t param = pieces[i].param;
    double sum = 0;
    for (; i < pieces.size() && pieces[i].param == param; ++i) {
      size_t end = i + 1 < pieces.size() ? firstBlock[i + 1] : blockSums.size();
      for (; block < end; ++block)
        sum += blockSums[block];
    }
    if (!std::isfinite(sum) && result.firstNonfinite < 0)
      result.firstNonfinite = param;
    result.total += sum;
  }
  result.total = std::sqrt(result.total);
  return result;
}

void Optimizer::update(double gradientFactor, double learningFactor,
                       int64_t updates) {
  double t = static_cast<double>(updates);
  double correction1 = 1 - std::pow(beta1, t);
  double correction2 = 1 - std::pow(beta2, t);
  parallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece &piece = pieces[index];
    const mgq_param &param = program.params[piece.param];
    double rate = groups[piece.param].learningRate * learningFactor;
    const float scalars[MGQ_ADAMW_SCALARS] = {
        static_cast<float>(gradientFactor),
        static_cast<float>(1 - rate * groups[piece.param].weightDecay),
        static_cast<float>(beta1),
        static_cast<float>(1 - beta1),
        static_cast<float>(beta2),
        static_cast<float>(1 - beta2),
        static_cast<float>(rate / correction1),
        static_cast<float>(1 / std::sqrt(correction2)),
        static_cast<float>(epsilon)};
    program.adamw(arena.floatsAt(param.value_offset) + piece.begin,
                  arena.floatsAt(param.grad_offset) + piece.begin,
                  arena.floatsAt(param.momentum_offset) + piece.begin,
                  arena.floatsAt(param.variance_offset) + piece.begin, scalars,
                  piece.count);
  });
}
