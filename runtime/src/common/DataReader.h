//===- DataReader.h - Records of training data ------------------*- C++ -*-===//
//
// A record is one micro-batch's input. Files hold each input of the model as a
// tensor with a leading axis of records, or with a leading axis of samples, of
// which consecutive ones form a record. Programs that put micro-batches
// together themselves (mgq_program.by_sample) have records of one sample.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_DATAREADER_H
#define MGQ_RUNTIME_COMMON_DATAREADER_H

#include "runtime/src/common/Safetensors.h"
#include <memory>

namespace mgq::rt {

/// The records that make up a micro-batch, in order.
struct RecordList {
  const int64_t *records;
  int32_t count;

  const int64_t *begin() const { return records; }
  const int64_t *end() const { return records + count; }
};

class DataReader {
public:
  /// Opens and checks all files: names, types, shapes, metadata that the model
  /// also has, range of indices. Throws Error that names file, input, record.
  /// `loaded`: the inputs whose values count (empty: all); the others' are
  /// neither read nor checked.
  DataReader(const mgq_program &program, const std::vector<std::string> &paths,
             std::vector<bool> loaded = {});

  int64_t records() const { return recordCount; }

  /// A hash of a sample of the values of all inputs, whole if there are few.
  uint64_t fingerprint() const;

  /// Lets the inputs of a record come from the disk meanwhile.
  void prefetch(int64_t record) const;

  /// Copies input `input` of a record to `target`.
  /// Normalises U8 images, makes booleans 0 or 1. Allocates nothing. What was
  /// read does not stay in the process, however large the files.
  void load(int64_t record, int32_t input, std::byte *target) const;

  /// Goes on hashing from `hash` with what load() depends on.
  uint64_t hash(int64_t record, int32_t input, uint64_t hash) const;

private:
  /// One input in one file.
  struct Column {
    const std::byte *data = nullptr;
    int64_t recordBytes = 0;
    /// U8 image: value of [channel][byte]; empty: bytes are copied.
    std::vector<float> table;
    int64_t channels = 0, channelSize = 0;
  };
  struct Part {
    explicit Part(const std::string &path) : file(path) {}

    SafetensorsFile file;
    int64_t firstRecord = 0, records = -1;
    std::vector<Column> columns;
  };

  void open(const std::string &path);
  Shape recordShape(const mgq_input &input) const;
  void openInput(Part &part, const mgq_input &input);
  void openImage(Part &part, const mgq_input &input, Column &column);
  bool isImageKey(const std::string &key) const;
  const Part &partOf(int64_t record) const;
  void checkMetadata(const SafetensorsFile &file) const;
  void checkRange(const Part &part, int32_t input) const;

  const mgq_program &program;
  std::vector<bool> loaded;
  std::vector<std::unique_ptr<Part>> parts;
  int64_t recordCount = 0;
};

/// Which record a micro-batch of a step takes: file order or a permutation per
/// epoch. Allocates nothing after construction.
class RecordOrder {
public:
  /// `perStep`: records of a global batch, each one of `units`. Throws Error if
  /// there are fewer records, or more than 2^32 - 1.
  RecordOrder(int64_t records, int64_t perStep, bool shuffle, uint64_t seed,
              const char *units = "micro-batches");

  int64_t stepsPerEpoch() const { return epochSteps; }

  /// Whether asking for a step's records costs no new permutation.
  bool isFree(int64_t step) const;

  /// `step` from 0, `index` below perStep.
  int64_t recordOf(int64_t step, int64_t index);

private:
  int64_t perStep, epochSteps;
  bool shuffle;
  uint64_t seed;
  int64_t orderEpoch = -1;
  std::vector<uint32_t> order;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_DATAREADER_H
