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
static constexpr int64_t hostPiece = 16 * MGQ_NORM_BLOCK;

Optimizer::Optimizer(const RankView &view, const Options &options, Arena &arena)
    : view(view), arena(arena), device(arena.device()),
      pieceElements(device.accelerator() ? std::numeric_limits<int64_t>::max()
                                         : hostPiece),
      beta1(options.beta1), beta2(options.beta2), epsilon(options.epsilon),
      trainable(trainableParams(view.program)),
      places(placesByParam(view.program, view.tables)),
      uses(view.program.param_count), left(2 * view.tables.chunk_count) {
  collectPieces();
  collectGrads();
  collectUses();
  makeGroups(options);
  collectUpdates();
}

[[noreturn]] static void failGradient(const mgq_param &param) {
  fail("the program's tables are damaged: gradient of parameter '{}'",
       param.name);
}

void Optimizer::collectPieces() {
  int64_t blocks = 0;
  for (int32_t i : trainable) {
    const mgq_param &param = view.program.params[i];
    if (param.owner != view.stage)
      continue;
    if (!places[i] || places[i]->value_offset < 0 ||
        places[i]->grad_offset < 0 || places[i]->momentum_offset < 0 ||
        places[i]->variance_offset < 0)
      failGradient(param);
    int64_t count = paramElements(param);
    for (int64_t begin = 0, size; begin < count; begin += size) {
      size = std::min(pieceElements, count - begin);
      pieces.push_back({i, begin, size});
      firstBlock.push_back(blocks);
      blocks += (size + MGQ_NORM_BLOCK - 1) / MGQ_NORM_BLOCK;
    }
  }
  if (!device.accelerator())
    return blockSums.resize(blocks);
  for (const Piece &piece : pieces)
    gradients.push_back(
        {arena.floatsAt(places[piece.param]->grad_offset), piece.count});
  sums.emplace(device, pieces.size());
}

void Optimizer::collectGrads() {
  for (int32_t c = 0; c < view.tables.chunk_count; ++c) {
    const mgq_chunk &chunk = view.tables.chunks[c];
    for (int32_t g = 0; g < chunk.grad_count; ++g) {
      const mgq_grad &grad = chunk.grads[g];
      const mgq_param &param = view.program.params[grad.param];
      const mgq_sequence &sequence =
          grad.of_weight ? chunk.weight : chunk.backward;
      if (!param.trainable)
        failGradient(param);
      if (grad.after < 0 || grad.after >= sequence.call_count)
        fail("the program's tables are damaged: gradient of parameter '{}' "
             "after call {}",
             param.name, grad.after);
      int64_t count = paramElements(param);
      std::pair<int64_t, int64_t> entry{grad.accumulator, count};
      auto it = std::find(accumulators.begin(), accumulators.end(), entry);
      auto index = static_cast<int32_t>(it - accumulators.begin());
      if (it == accumulators.end())
        accumulators.push_back(entry);
      Left &calls = left[2 * c + (grad.of_weight ? 1 : 0)];
      calls.resize(std::max<size_t>(calls.size(), grad.after + 1));
      for (int64_t begin = 0, size; begin < count; begin += size) {
        size = std::min(pieceElements, count - begin);
        calls[grad.after].push_back({g, index, begin, size});
      }
    }
  }
  written.resize(accumulators.size());
  running.reserve(mostAdditions());
}

size_t Optimizer::mostAdditions() const {
  size_t most = 0;
  for (const Left &calls : left) {
    size_t count = 0;
    for (const std::vector<LeftPiece> &list : calls)
      count += list.size();
    most = std::max(most, count);
  }
  return most;
}

void Optimizer::collectUses() {
  for (int32_t i = 0; i < view.tables.use_count; ++i) {
    const mgq_use &use = view.tables.uses[i];
    const mgq_param &param = view.program.params[use.param];
    bool first = uses[use.param].empty();
    if (!param.trainable || param.owner != view.stage ||
        (use.accumulator == places[use.param]->grad_offset) != first)
      failGradient(param);
    uses[use.param].push_back(use.accumulator);
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
  const mgq_program &program = view.program;
  groups.assign(program.param_count,
                {options.learningRate, options.weightDecay});
  for (const std::string &glob : options.noDecay)
    for (int32_t i : matches(program, "--no-decay", glob))
      groups[i].weightDecay = 0;
  for (const auto &[glob, rate] : options.learningRateOf)
    for (int32_t i : matches(program, "--learning-rate-of", glob))
      groups[i].learningRate = rate;
}

/// Whether `next` lies behind `last` in all arrays alike, but for what aligns
/// it, and is updated alike. What aligns it is zero and stays so.
bool Optimizer::joins(const Update &last, const Update &next) const {
  const Group &a = groups[last.param], &b = groups[next.param];
  int64_t gap = next.offsets[0] - last.offsets[0] - last.count * 4;
  bool isBehind = gap >= 0 && gap < 64;
  for (int i = 1; i < 4; ++i)
    isBehind &= next.offsets[i] - last.offsets[i] - last.count * 4 == gap;
  return isBehind && a.learningRate == b.learningRate &&
         a.weightDecay == b.weightDecay;
}

void Optimizer::collectUpdates() {
  for (const Piece &piece : pieces) {
    const mgq_place &place = *places[piece.param];
    int64_t begin = piece.begin * 4;
    Update next = {piece.param,
                   {place.value_offset + begin, place.grad_offset + begin,
                    place.momentum_offset + begin,
                    place.variance_offset + begin},
                   piece.count};
    if (!device.accelerator() || updates.empty() ||
        !joins(updates.back(), next)) {
      updates.push_back(next);
      continue;
    }
    Update &last = updates.back();
    last.count = (next.offsets[0] - last.offsets[0]) / 4 + next.count;
  }
}

/// Runs body(i) for i in [0, count): on the compute threads, or one after the
/// other where that enqueues.
template <typename Body>
void Optimizer::forEach(size_t count, Body body) {
  if (!device.accelerator())
    return parallelFor(static_cast<int64_t>(count), body);
  for (size_t i = 0; i < count; ++i)
    body(static_cast<int64_t>(i));
}

void Optimizer::startStep() { std::fill(written.begin(), written.end(), 0); }

void Optimizer::planAdditions(int32_t chunk, bool ofWeight, int32_t call,
                              const std::vector<std::byte *> &gradPlaces,
                              std::vector<Addition> &additions) {
  const Left &calls = left[2 * chunk + (ofWeight ? 1 : 0)];
  if (static_cast<size_t>(call) >= calls.size())
    return;
  const std::vector<LeftPiece> &list = calls[call];
  for (const LeftPiece &piece : list)
    additions.push_back(
        {arena.floatsAt(accumulators[piece.accumulator].first) + piece.begin,
         reinterpret_cast<const float *>(gradPlaces[piece.grad]) + piece.begin,
         piece.count, written[piece.accumulator] != 0});
  for (const LeftPiece &piece : list)
    written[piece.accumulator] = 1;
}

void Optimizer::add(const Addition *additions, size_t count) {
  forEach(count, [&](int64_t index) {
    const Addition &one = additions[index];
    if (one.adds)
      view.program.accumulate(one.sum, one.values, one.count);
    else
      device.copy(one.sum, one.values, one.count * sizeof(float));
  });
}

void Optimizer::accumulate(int32_t chunk, bool ofWeight, int32_t call,
                           const std::vector<std::byte *> &gradPlaces) {
  running.clear();
  planAdditions(chunk, ofWeight, call, gradPlaces, running);
  if (!running.empty())
    add(running.data(), running.size());
}

void Optimizer::zeroGradients() {
  for (auto [offset, count] : accumulators)
    device.zero(arena.at(offset), count * sizeof(float));
}

void Optimizer::combineUses() {
  forEach(pieces.size(), [&](int64_t index) {
    const Piece &piece = pieces[index];
    const std::vector<int64_t> &list = uses[piece.param];
    for (size_t i = 1; i < list.size(); ++i)
      view.program.accumulate(arena.floatsAt(list[0]) + piece.begin,
                              arena.floatsAt(list[i]) + piece.begin,
                              piece.count);
  });
}

void Optimizer::unscale(double lossScale) {
  double factor = 1 / lossScale;
  Accelerator *accelerator = device.accelerator();
  forEach(updates.size(), [&](int64_t index) {
    const Update &update = updates[index];
    float *values = arena.floatsAt(update.offsets[1]);
    if (accelerator)
      return accelerator->scale(values, factor, update.count);
    for (int64_t i = 0; i < update.count; ++i)
      values[i] = static_cast<float>(static_cast<double>(values[i]) * factor);
  });
}

void Optimizer::squaredNorms(double *norms) {
  if (Accelerator *accelerator = device.accelerator())
    deviceNorms(*accelerator, norms);
  else
    hostNorms(norms);
}

void Optimizer::deviceNorms(Accelerator &accelerator, double *norms) {
  accelerator.squaredNorms(gradients, sums->begin());
  accelerator.synchronize();
  for (size_t i = 0, number = 0; i < pieces.size(); ++i, ++number) {
    while (trainable[number] != pieces[i].param)
      ++number;
    norms[number] = (*sums)[i];
  }
}

void Optimizer::recordNorms() {
  device.accelerator()->squaredNorms(gradients, sums->begin());
}

void Optimizer::hostNorms(double *norms) {
  parallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t index) {
    const Piece &piece = pieces[index];
    const float *values =
        arena.floatsAt(places[piece.param]->grad_offset) + piece.begin;
    double *sums = blockSums.data() + firstBlock[index];
    for (int64_t i = 0; i < piece.count; i += MGQ_NORM_BLOCK)
      *sums++ = view.program.sq_norm(
          values + i, std::min<int64_t>(MGQ_NORM_BLOCK, piece.count - i));
  });
  size_t block = 0, number = 0;
  for (size_t i = 0; i < pieces.size();) {
    int32_t param = pieces[i].param;
    double sum = 0;
    for (; i < pieces.size() && pieces[i].param == param; ++i) {
      size_t end = i + 1 < pieces.size() ? firstBlock[i + 1] : blockSums.size();
      for (; block < end; ++block)
        sum += blockSums[block];
    }
    while (trainable[number] != param)
      ++number;
    norms[number] = sum;
  }
}

GradientNorm Optimizer::total(const double *norms) const {
  GradientNorm result{0, -1};
  for (size_t i = 0; i < trainable.size(); ++i) {
    if (!std::isfinite(norms[i]) && result.firstNonfinite < 0)
      result.firstNonfinite = trainable[i];
    result.total += norms[i];
  }
  result.total = std::sqrt(result.total);
  return result;
}

void Optimizer::update(double gradientFactor, double learningFactor,
                       int64_t number) {
  double t = static_cast<double>(number);
  double correction1 = 1 - std::pow(beta1, t);
  double correction2 = 1 - std::pow(beta2, t);
  forEach(updates.size(), [&](int64_t index) {
    const Update &one = updates[index];
    double rate = groups[one.param].learningRate * learningFactor;
    const float scalars[MGQ_ADAMW_SCALARS] = {
        static_cast<float>(gradientFactor),
        static_cast<float>(1 - rate * groups[one.param].weightDecay),
        static_cast<float>(beta1),
        static_cast<float>(1 - beta1),
        static_cast<float>(beta2),
        static_cast<float>(1 - beta2),
        static_cast<float>(rate / correction1),
        static_cast<float>(1 / std::sqrt(correction2)),
        static_cast<float>(epsilon)};
    view.program.adamw(arena.floatsAt(one.offsets[0]),
                       arena.floatsAt(one.offsets[1]),
                       arena.floatsAt(one.offsets[2]),
                       arena.floatsAt(one.offsets[3]), scalars, one.count);
  });
}
