//===- Transfer.h - Parameters to and from rank 0 ---------------*- C++ -*-===//
//
// Rank 0 alone reads and writes checkpoints; no disk need be shared. Tensors
// travel piece by piece in the canonical layout, so that no rank needs room for
// a whole one. All ranks go through the parameters in program order.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_TRANSFER_H
#define MGQ_RUNTIME_COMMON_TRANSFER_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Group.h"
#include "runtime/src/common/Program.h"

namespace mgq::rt {

/// What ranks keep of a trainable parameter. Master is the value of those whose
/// stored type is narrower than f32.
/// Staging is where residuals of compressed gradients are put together.
enum class ParamPart { Value, Gradient, Momentum, Variance, Master, Staging };

class Transfer {
public:
  Transfer(const RankView &view, Arena &arena, Group &group);

  const mgq_program &program() const { return view.program; }
  /// The trainable parameters that have a part, in program order.
  std::vector<int32_t> paramsWith(ParamPart part) const;

  /// Rank 0: elements [begin, begin + count) of a parameter, from its owner in
  /// the first replica. `count` is pieceElements or what is left of it. Pieces
  /// are read in their order.
  void read(int32_t param, ParamPart part, int64_t begin, int64_t count,
            float *to);
  /// Other ranks: sends what rank 0 reads, if it reads these parts of all
  /// trainable parameters, part by part.
  void serve(const std::vector<ParamPart> &parts);

  /// Rank 0: hands a whole parameter, of a float type and maybe unaligned, to
  /// all ranks that keep the part, as f32.
  void write(int32_t param, ParamPart part, mgq_type type,
             const std::byte *canonical);
  /// Other ranks: takes what rank 0 writes, part by part.
  void accept(const std::vector<ParamPart> &parts);

  /// Where ParamPart::Staging is on this rank, laid out as the owned gradients;
  /// negative: nowhere.
  void setStaging(int64_t offset) { staging = offset; }

  /// All ranks: rank 0's number.
  int32_t fromFirst(int32_t number) {
    group.fromFirst(number);
    return number;
  }

  /// Elements of a message.
  static constexpr int64_t pieceElements = 1 << 20;

private:
  int64_t offsetOf(const mgq_place *place, ParamPart part) const;
  float *ownPlace(int32_t param, ParamPart part) const;
  void copyOut(int32_t param, ParamPart part, int64_t begin, int64_t count,
               float *to);
  void copyIn(int32_t param, ParamPart part, int64_t begin, int64_t count,
              const float *from);
  template <typename Visit>
  void forPieces(int32_t param, Visit visit) const;
  float *onHost(int32_t param, float *own, bool fetch);

  const RankView &view;
  Arena &arena;
  Group &group;
  std::vector<std::vector<const mgq_place *>> places; ///< Of each stage.
  int64_t staging = -1;
  std::vector<float> buffer;
  std::vector<float> whole; ///< An accelerator's tensor, to be transposed.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_TRANSFER_H
