//===- Weights.h - Parameters in their files --------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_WEIGHTS_H
#define MGQ_RUNTIME_COMMON_WEIGHTS_H

#include "runtime/src/common/Arena.h"
#include "runtime/src/common/Files.h"
#include "runtime/src/common/Program.h"
#include "runtime/src/common/Types.h"
#include <functional>
#include <map>
#include <memory>

namespace mgq::rt {

/// Maps the files that hold what a rank uses: the ONNX file, its external data.
class Weights {
public:
  /// `folder`: --weights, or empty for the folder of the recorded model. Throws
  /// Error that names file and parameter if one is missing or too short, or if
  /// a file is not the one the program was compiled from. Reads the graph, no
  /// weight.
  Weights(const RankView &view, const std::string &folder);

  /// Copies trainable parameters into the arena as f32, with momentum and
  /// variance zero; frozen ones only where the program asks for it, a slice of
  /// those that are spread.
  /// `pulse`, unless empty, is called after each parameter: see Group.
  void load(Arena &arena, const std::function<void()> &pulse = nullptr) const;

  /// Bytes of a parameter, as stored in its file; null if the rank does not use
  /// it.
  const std::byte *data(int32_t param) const { return pointers[param]; }

private:
  void checkFiles(const mgq_program &program, const std::string &home);

  const RankView &view;
  std::map<std::string, std::unique_ptr<MappedFile>> files;
  std::vector<const std::byte *> pointers;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_WEIGHTS_H
