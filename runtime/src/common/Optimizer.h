//===- Optimizer.h - Gradients, norms, AdamW -----------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_COMMON_OPTIMIZER_H
#define MGQ_RUNTIME_COMMON_OPTIMIZER_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Options.h"
#include "runtime/src/common/Types.h"

namespace mgq::rt {

/// Norms of the accumulated gradients.
struct GradientNorm {
  double total;           ///< Over all trainable parameters.
  int32_t firstNonfinite; ///< Index of a parameter, -1: all are finite.
};

/// AdamW as torch.optim.AdamW over the program's trainable parameters. Work is
/// cut into pieces that depend on shapes only, so that thread counts change no
/// bit. Allocates nothing after construction.
class Optimizer {
public:
  /// Throws Error if a glob of the options matches no trainable parameter.
  Optimizer(const mgq_program &program, const Options &options, Arena &arena);

  /// Adds the gradients that call number `call` of backward left to their
  /// accumulators; the `first` micro-batch of a step overwrites.
  void accumulate(int32_t call, bool first);

  /// After the last micro-batch: adds up the uses of each parameter.
  void combineUses();

  GradientNorm norm();

  /// Updates all parameters. `gradientFactor`: clipping's; `learningFactor`:
  /// the schedule's; `updates`: number of this update, from 1.
  void update(double gradientFactor, double learningFactor, int64_t updates);

private:
  /// A piece of a parameter.
  struct Piece {
    int32_t param;
    int64_t begin, count; ///< Elements.
  };
  struct Group {
    double learningRate, weightDecay;
  };

  /// A piece of one use of a parameter.
  struct UsePiece {
    mgq_grad use;
    int64_t begin, count; ///< Elements.
  };

  void collectUses();
  void makeGroups(const Options &options);

  const mgq_program &program;
  Arena &arena;
  double beta1, beta2, epsilon;
  std::vector<Piece> pieces;
  std::vector<double> blockSums;
  std::vector<int64_t> firstBlock;         ///< Of each piece, in blockSums.
  std::vector<Group> groups;               ///< Of each parameter.
  std::vector<std::vector<mgq_grad>> uses; ///< Of each parameter.
  std::vector<std::vector<UsePiece>> left; ///< By each call of backward.
};

/// Indices of the trainable parameters, in program order.
std::vector<int32_t> trainableParams(const mgq_program &program);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_OPTIMIZER_H
