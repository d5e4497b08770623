//===- Optimizer.h - Gradients, norms, AdamW --------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_OPTIMIZER_H
#define MGQ_RUNTIME_COMMON_OPTIMIZER_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Options.h"
#include "runtime/src/common/Program.h"
#include "runtime/src/common/Types.h"
#include <limits>
#include <optional>

namespace mgq::rt {

/// Norms of the accumulated gradients.
struct GradientNorm {
  double total;           ///< Over all trainable parameters.
  int32_t firstNonfinite; ///< Index of a parameter, -1: all are finite.
};

/// What a rank does with gradients: sums over micro-batches and uses, norms,
/// AdamW as torch.optim.AdamW on the parameters it owns. On the host, work is
/// cut into pieces that depend on shapes only, so that thread counts change no
/// bit; an accelerator gets whole parameters. Allocates nothing after
/// construction.
class Optimizer {
public:
  /// Throws Error if a glob of the options matches no trainable parameter of
  /// the program.
  Optimizer(const RankView &view, const Options &options, Arena &arena);

  /// Before the micro-batches of a step: the next gradient overwrites each
  /// accumulator.
  void startStep();

  /// Adds the gradients that call number `call` of a chunk's backward (or
  /// weight) sequence left at the micro-batch's `places`, in the order of the
  /// chunk's table, to their accumulators.
  void accumulate(int32_t chunk, bool ofWeight, int32_t call,
                  const std::vector<std::byte *> &places);

  /// What accumulate() does with some values: adds or copies them.
  struct Addition {
    float *sum;
    const float *values;
    int64_t count;
    bool adds;
  };
  /// The same in two parts. Appends what is to be done, and takes it for done;
  void planAdditions(int32_t chunk, bool ofWeight, int32_t call,
                     const std::vector<std::byte *> &places,
                     std::vector<Addition> &additions);
  /// does it.
  void add(const Addition *additions, size_t count);
  /// Additions that the calls of a sequence can have, at most.
  size_t mostAdditions() const;

  /// For an accelerator that records: the work of squaredNorms().
  void recordNorms();

  /// Fills all accumulators of the rank's chunks with zeros: no micro-batch was
  /// run.
  void zeroGradients();

  /// After the last micro-batch: adds up the uses of each owned parameter.
  void combineUses();

  /// Divides the gradients of owned parameters by the loss scale, rounding each
  /// once (to nearest even, for a power of two).
  void unscale(double lossScale);

  /// Squared norms of the gradients of owned parameters, each at its index
  /// among the program's trainable ones. Others stay as they are. Returns when
  /// they are known.
  void squaredNorms(double *norms);

  /// Sums squared norms, of all trainable parameters in program order.
  GradientNorm total(const double *norms) const;

  /// Updates owned parameters. `gradientFactor`: clipping's; `learningFactor`:
  /// the schedule's; `number`: of this update, from 1.
  void update(double gradientFactor, double learningFactor, int64_t number);

private:
  /// A piece of an owned parameter.
  struct Piece {
    int32_t param;
    int64_t begin, count; ///< Elements.
  };
  struct Group {
    double learningRate, weightDecay;
  };
  /// What one call of AdamW updates: a piece or, for an accelerator, parameters
  /// side by side. Offsets of value, gradient, momentum, variance.
  struct Update {
    int32_t param; ///< Whose group it has.
    int64_t offsets[4];
    int64_t count; ///< Elements.
  };
  /// A piece of what one call leaves.
  struct LeftPiece {
    int32_t grad;        ///< Index in the chunk's table.
    int32_t accumulator; ///< Index in `written`.
    int64_t begin, count;
  };
  /// By each call of a sequence.
  using Left = std::vector<std::vector<LeftPiece>>;

  template <typename Body>
  void forEach(size_t count, Body body);
  void hostNorms(double *norms);
  void deviceNorms(Accelerator &accelerator, double *norms);
  void collectPieces();
  void collectGrads();
  void collectUses();
  void makeGroups(const Options &options);
  void collectUpdates();
  bool joins(const Update &last, const Update &next) const;

  const RankView &view;
  Arena &arena;
  Device &device;
  int64_t pieceElements;
  double beta1, beta2, epsilon;
  std::vector<int32_t> trainable;
  std::vector<const mgq_place *> places; ///< Of each parameter.
  std::vector<Piece> pieces;
  std::vector<Update> updates;
  std::vector<Accelerator::Values> gradients; ///< What an accelerator sums,
  std::optional<HostCells<double>> sums;      ///< and gives, of each piece.
  std::vector<double> blockSums;
  std::vector<int64_t> firstBlock;        ///< Of each piece, in blockSums.
  std::vector<Group> groups;              ///< Of each parameter.
  std::vector<std::vector<int64_t>> uses; ///< Accumulators of each parameter.
  std::vector<Left> left; ///< Of each chunk: backward, then weight.
  std::vector<std::pair<int64_t, int64_t>> accumulators; ///< Offset, elements.
  std::vector<uint8_t> written;  ///< Whether the step has written each of them.
  std::vector<Addition> running; ///< Of accumulate().
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_OPTIMIZER_H
