//===- LossScale.h - The factor on the backward seed ------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_LOSSSCALE_H
#define MGQ_RUNTIME_COMMON_LOSSSCALE_H

#include <cstdint>

namespace mgq::rt {

struct Options;

enum class LossScaleKind { Off, Static, Dynamic };

/// What a checkpoint keeps of a dynamic scale.
struct LossScaleState {
  double scale = 0;       ///< 0: a checkpoint of a run without one.
  int64_t cleanSteps = 0; ///< Since the last overflow or growth.
  int64_t hysteresis = 0; ///< Overflows up to the next halving.
};

/// Decides the factor on each step's backward seed, by the rule of DeepSpeed's
/// DynamicLossScaler: an overflow halves the scale when it uses up the
/// hysteresis, which only growth gives back; the scale doubles after every
/// 1000 clean steps in a row.
class LossScale {
public:
  static constexpr double first = 65536, smallest = 1e-5, largest = 16777216;
  static constexpr int64_t window = 1000, fullHysteresis = 2;

  explicit LossScale(const Options &options);

  bool isOn() const { return kind != LossScaleKind::Off; }
  /// Of the next step; 1 if off.
  double scale() const { return state.scale; }

  /// After a step with a target: whether its gradients or loss were not finite.
  void stepped(bool overflow);

  /// For checkpoints; scale 0 unless dynamic.
  LossScaleState saved() const;
  /// Goes on from a checkpoint's state, if it has one and the scale is dynamic.
  void restore(const LossScaleState &from);

private:
  LossScaleKind kind;
  LossScaleState state;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_LOSSSCALE_H
