//===- Clipping.h - Limits on the gradients' norm ---------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_CLIPPING_H
#define MGQ_RUNTIME_COMMON_CLIPPING_H

#include "runtime/src/common/Options.h"

namespace mgq::rt {

/// Norms that --max-grad-norm=history looks back on.
constexpr size_t clipHistoryLength = 100;

/// Decides the factor on the gradients of a step. Allocates nothing after
/// construction.
class Clipping {
public:
  explicit Clipping(const Options &options);

  /// Factor for gradients of `norm` (finite), as torch.nn.utils'
  /// clip_grad_norm_: min(1, limit / (norm + 1e-6)). `epoch`: finished epochs
  /// plus the fraction of the running one. A history takes up `norm`
  /// afterwards.
  double factor(double norm, double epoch);

  /// The recorded norms, oldest first; what a checkpoint keeps.
  const std::vector<double> &history() const { return norms; }
  void setHistory(std::vector<double> history);

private:
  double historyLimit();

  ClipKind kind;
  double value;
  std::vector<double> norms, sorted;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_CLIPPING_H
