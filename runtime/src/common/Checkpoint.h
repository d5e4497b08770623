//===- Checkpoint.h - Saves and restores training ---------------*- C++ -*-===//
//
// A checkpoint is a folder `checkpoint-STEP`. It is written under a temporary
// name (`.tmp-checkpoint-...`) and renamed when all is on disk, so that a
// folder under a final name is always whole.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_CHECKPOINT_H
#define MGQ_RUNTIME_COMMON_CHECKPOINT_H

#include "runtime/src/common/Adapt.h"
#include "runtime/src/common/CompressedGradients.h"
#include "runtime/src/common/LossScale.h"
#include "runtime/src/common/Safetensors.h"
#include "runtime/src/common/Transfer.h"

namespace mgq::rt {

/// What is not in the arena. Everything that a resumed run needs to go on
/// bit-identically.
struct TrainerState {
  int64_t step = 0; ///< Finished steps.
  int64_t updates =
      0; ///< AdamW updates: steps that were neither empty nor skipped.
  int64_t emptySteps = 0;
  int64_t nonfiniteSteps = 0;
  std::vector<double> clipHistory;
  LossScaleState lossScale;

  // Decide the order of records; compared on resume.
  uint64_t seed = 0;
  bool shuffle = true;
  int64_t records = 0;
  int64_t microBatches = 0;
  double epoch = 0; ///< For readers.

  AdaptState adapt; ///< Number 0: micro-batches do not adapt.
};

/// Writes output/checkpoint-STEP and removes the oldest beyond `limit` (0: all
/// stay). Returns its path. Throws Error that names the file at fault; then no
/// folder under a final name has changed.
/// Rank 0 calls it while the others call serveCheckpoint(). `residuals`, which
/// may be null, are saved with the optimizer's states.
std::string saveCheckpoint(const std::string &output, Transfer &transfer,
                           const TrainerState &state, int64_t limit,
                           CompressedGradients *residuals = nullptr);
void serveCheckpoint(Transfer &transfer,
                     CompressedGradients *residuals = nullptr);
/// Removes the oldest checkpoints beyond `limit` (0: all stay), but not that of
/// `step`: a run that was killed may have written one and removed none.
void removeOldCheckpoints(const std::string &output, int64_t step,
                          int64_t limit);

/// Makes the folder of checkpoints if need be; throws Error if that, or writing
/// into it, is impossible.
void checkCheckpointFolder(const std::string &output);

/// Reads a checkpoint into the arenas. Throws Error for one that is damaged, of
/// another model or of other trainable parameters (naming them). Rank 0 calls
/// it while the others call acceptCheckpoint().
TrainerState loadCheckpoint(const std::string &path, Transfer &transfer,
                            CompressedGradients *residuals = nullptr);
void acceptCheckpoint(Transfer &transfer,
                      CompressedGradients *residuals = nullptr);

/// Reads the values of the trainable parameters, of any float type, from a file
/// like a checkpoint's model.safetensors. Throws Error as loadCheckpoint()
/// does. Rank 0 calls it while the others call acceptParameters().
void loadParameters(const std::string &path, Transfer &transfer);
void acceptParameters(Transfer &transfer);

/// The checkpoint of the latest step in a folder, empty if there is none.
std::string latestCheckpoint(const std::string &output);

/// Removes what interrupted runs left under temporary names.
void cleanTemporary(const std::string &output);

/// Writes the accumulated gradients under canonical names and layout. Rank 0
/// calls it while the others call serveGradients().
void writeGradients(const std::string &path, Transfer &transfer);
void serveGradients(Transfer &transfer);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_CHECKPOINT_H
