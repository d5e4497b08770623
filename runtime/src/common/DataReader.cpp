//===- DataReader.cpp - Records of training data --------------------------===//

#include "runtime/src/common/DataReader.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Glob.h"
#include "runtime/src/common/Philox.h"
#include "runtime/src/common/Program.h"
#include <cmath>
#include <cstring>

using namespace mgq::rt;

/// Records in a tensor of `shape` for an input of shape `wanted`; empty if the
/// shape fits neither form.
static std::optional<int64_t> recordsOf(const Shape &shape,
                                        const Shape &wanted) {
  if (shape.size() == wanted.size() + 1 &&
      std::equal(wanted.begin(), wanted.end(), shape.begin() + 1))
    return shape[0];
  if (shape.empty() || shape.size() != wanted.size() || wanted[0] == 0 ||
      shape[0] % wanted[0] != 0 ||
      !std::equal(wanted.begin() + 1, wanted.end(), shape.begin() + 1))
    return std::nullopt;
  return shape[0] / wanted[0];
}

/// Numbers of "[0.48, 0.45]" or "0.48,0.45"; empty if it is something else.
static std::vector<float> parseNumbers(std::string text) {
  for (char &c : text)
    if (c == '[' || c == ']' || c == '(' || c == ')' || c == ',')
      c = ' ';
  std::vector<float> numbers;
  const char *from = text.c_str();
  for (;;) {
    char *end = nullptr;
    float value = strtof(from, &end);
    if (end == from)
      break;
    if (!std::isfinite(value))
      return {};
    numbers.push_back(value);
    from = end;
  }
  while (*from == ' ')
    ++from;
  return *from ? std::vector<float>() : numbers;
}

/// Which axis of an image input the numbers are for: [sample, channel, height,
/// width], also with more axes after the samples (images of a sample) or after
/// the channels (frames of a clip). Empty if none has as many entries.
static std::optional<size_t> channelAxis(const Shape &shape,
                                         const std::vector<float> &numbers) {
  auto fits = [&](size_t axis) {
    return axis < shape.size() &&
           shape[axis] == static_cast<int64_t>(numbers.size());
  };
  if (shape.size() >= 4 && fits(shape.size() - 3))
    return shape.size() - 3;
  if (fits(1))
    return 1;
  return std::nullopt;
}

/// How many channels a shape may have: "3", "2 or 3".
static std::string channelsText(const Shape &shape) {
  if (shape.size() < 2)
    return "0";
  if (shape.size() > 4 && shape[shape.size() - 3] != shape[1])
    return fmt::format("{} or {}", shape[shape.size() - 3], shape[1]);
  return fmt::format("{}", shape[1]);
}

/// Mean or standard deviation of an image input: one number, or one per
/// channel.
static std::vector<float> channelNumbers(const SafetensorsFile &file,
                                         const mgq_input &input,
                                         const char *suffix) {
  std::string key = std::string(input.name) + suffix;
  auto it = file.metadata().find(key);
  if (it == file.metadata().end())
    fail("'{}': input '{}' is U8, which needs metadata '{}.mean' and "
         "'{}.std'; '{}' is missing",
         file.path(), input.name, input.name, input.name, key);
  std::vector<float> numbers = parseNumbers(it->second);
  if (numbers.empty() ||
      (numbers.size() != 1 && !channelAxis(shapeOf(input.tensor), numbers)))
    fail("'{}': metadata '{}' is '{}', expected one number, or one for each of "
         "the {} channels of {}",
         file.path(), key, it->second, channelsText(shapeOf(input.tensor)),
         shapeText(shapeOf(input.tensor)));
  return numbers;
}

DataReader::DataReader(const mgq_program &program,
                       const std::vector<std::string> &paths,
                       std::vector<bool> loadedInputs)
    : program(program), loaded(std::move(loadedInputs)) {
  loaded.resize(program.input_count, loaded.empty());
  for (const std::string &path : paths)
    open(path);
}

uint64_t DataReader::fingerprint() const {
  static constexpr int64_t sampledRecords = 64, sampledBytes = 4096;
  uint64_t hash = MGQ_HASH_START;
  for (const std::unique_ptr<Part> &part : parts)
    for (const Column &column : part->columns) {
      int64_t bytes = std::min(sampledBytes, column.recordBytes);
      int64_t count = std::min(sampledRecords, part->records);
      for (int64_t i = 0; i < count; ++i) {
        int64_t record = i * part->records / count;
        hash = mgq_hash(hash, column.data + record * column.recordBytes, bytes);
      }
    }
  return hash;
}

void DataReader::open(const std::string &path) {
  parts.push_back(std::make_unique<Part>(path));
  Part &part = *parts.back();
  part.firstRecord = recordCount;
  checkMetadata(part.file);
  for (int32_t i = 0; i < program.input_count; ++i)
    openInput(part, program.inputs[i]);
  if (part.records == 0)
    fail("'{}' has no records", path);
  for (int32_t i = 0; i < program.input_count; ++i)
    checkRange(part, i);
  recordCount += std::max<int64_t>(part.records, 0);
}

/// The shape of an input in one record.
Shape DataReader::recordShape(const mgq_input &input) const {
  Shape shape = shapeOf(input.tensor);
  if (!program.by_sample)
    return shape;
  if (shape.empty() || shape[0] != program.micro_batch_size)
    fail("the program's tables are damaged: input '{}'", input.name);
  shape[0] = 1;
  return shape;
}

void DataReader::openInput(Part &part, const mgq_input &input) {
  if (randomOpOf(input) >= 0) {
    part.columns.push_back({});
    return;
  }
  const std::string &path = part.file.path();
  const TensorView *view = part.file.find(input.name);
  if (!view) {
    std::vector<std::string> names;
    for (const auto &entry : part.file.tensors())
      names.push_back(entry.first);
    fail("'{}' has no tensor '{}', an input of the model; it has: {}", path,
         input.name, fmt::join(nearestNames(input.name, names, 8), ", "));
  }
  Shape wanted = recordShape(input);
  bool image = view->type == MGQ_U8 && input.tensor.type == MGQ_F32;
  if (view->type != input.tensor.type && !image)
    fail("'{}': input '{}' has type {}, expected {}", path, input.name,
         typeName(view->type), typeName(input.tensor.type));
  std::optional<int64_t> records = recordsOf(view->shape, wanted);
  if (!records && program.by_sample)
    fail("'{}': input '{}' has shape {}, expected single samples: a leading "
         "axis of any size before {}; this program cuts steps into "
         "micro-batches itself",
         path, input.name, shapeText(view->shape),
         shapeText({wanted.begin() + 1, wanted.end()}));
  if (!records) {
    std::string rows =
        wanted.empty()
            ? ""
            : fmt::format(" or rows of it, a multiple of {}", wanted[0]);
    fail("'{}': input '{}' has shape {}, expected records of {}{}", path,
         input.name, shapeText(view->shape), shapeText(wanted), rows);
  }
  if (part.records >= 0 && *records != part.records)
    fail("'{}': input '{}' has {} records, '{}' has {}", path, input.name,
         *records, program.inputs[0].name, part.records);
  part.records = *records;

  int64_t count = elementCount(wanted).value();
  Column column{view->data, count * typeBytes(view->type), {}};
  if (image)
    openImage(part, input, column);
  part.columns.push_back(std::move(column));
}

/// Makes the table of a U8 image input.
void DataReader::openImage(Part &part, const mgq_input &input, Column &column) {
  Shape shape = recordShape(input);
  std::vector<float> mean = channelNumbers(part.file, input, ".mean");
  std::vector<float> deviation = channelNumbers(part.file, input, ".std");
  const std::vector<float> &longer =
      mean.size() > deviation.size() ? mean : deviation;
  column.channelSize = std::max<int64_t>(1, column.recordBytes);
  if (longer.size() > 1) {
    if (mean.size() > 1 && deviation.size() > 1 &&
        mean.size() != deviation.size())
      fail("'{}': metadata '{}.mean' has {} numbers, '{}.std' has {}",
           part.file.path(), input.name, mean.size(), input.name,
           deviation.size());
    column.channelSize = 1;
    for (size_t i = channelAxis(shape, longer).value() + 1; i < shape.size();
         ++i)
      column.channelSize *= shape[i];
  }
  column.channels = static_cast<int64_t>(longer.size());
  mean.resize(longer.size(), mean[0]);
  deviation.resize(longer.size(), deviation[0]);
  for (int64_t c = 0; c < column.channels; ++c) {
    if (!(deviation[c] > 0))
      fail("'{}': metadata '{}.std' is {} for channel {}, expected a positive "
           "number",
           part.file.path(), input.name, deviation[c], c);
    for (int value = 0; value < 256; ++value)
      column.table.push_back((static_cast<float>(value) / 255.0f - mean[c]) /
                             deviation[c]);
  }
}

/// Whether a key says how images of an input are normalised.
bool DataReader::isImageKey(const std::string &key) const {
  for (int32_t i = 0; i < program.input_count; ++i)
    if (key == std::string(program.inputs[i].name) + ".mean" ||
        key == std::string(program.inputs[i].name) + ".std")
      return true;
  return false;
}

void DataReader::checkMetadata(const SafetensorsFile &file) const {
  for (int32_t i = 0; i < program.metadata_count; ++i) {
    const mgq_pair &pair = program.metadata[i];
    bool isNumbers = isImageKey(pair.key);
    if (!isNumbers && strncmp(pair.key, "mgq.", 4) != 0)
      continue;
    auto it = file.metadata().find(pair.key);
    if (it == file.metadata().end() || it->second == pair.value)
      continue;
    if (!isNumbers || parseNumbers(it->second).empty() ||
        parseNumbers(it->second) != parseNumbers(pair.value))
      fail("'{}' was made for another model: metadata '{}' is '{}', the "
           "model's is '{}'",
           file.path(), pair.key, it->second, pair.value);
  }
}

void DataReader::checkRange(const Part &part, int32_t index) const {
  const mgq_input &input = program.inputs[index];
  if (input.limit <= 0 || isFloat(input.tensor.type) || !loaded[index])
    return;
  const Column &column = part.columns[index];
  static constexpr int64_t checkedElements = 1 << 20;
  int64_t bytes = typeBytes(input.tensor.type);
  int64_t perRecord = column.recordBytes / bytes;
  for (int64_t i = 0; i < part.records * perRecord; ++i) {
    if (i && i % checkedElements == 0)
      part.file.release(column.data, column.data + i * bytes);
    int64_t value = integerAt(input.tensor.type, column.data, i);
    if ((value >= 0 && value < input.limit) ||
        (input.has_ignore_value && value == input.ignore_value))
      continue;
    fail("'{}': input '{}' has the value {} in record {}, expected 0 to {}{}",
         part.file.path(), input.name, value, i / perRecord, input.limit - 1,
         input.has_ignore_value ? fmt::format(" or {}", input.ignore_value)
                                : "");
  }
  part.file.release(column.data,
                    column.data + part.records * column.recordBytes);
}

const DataReader::Part &DataReader::partOf(int64_t record) const {
  size_t at = 0;
  while (record >= parts[at]->firstRecord + parts[at]->records)
    ++at;
  return *parts[at];
}

void DataReader::prefetch(int64_t record) const {
  const Part &part = partOf(record);
  for (int32_t i = 0; i < program.input_count; ++i) {
    const Column &column = part.columns[i];
    const std::byte *from =
        column.data + (record - part.firstRecord) * column.recordBytes;
    if (loaded[i] && column.recordBytes)
      part.file.prefetch(from, from + column.recordBytes);
  }
}

void DataReader::load(int64_t record, int32_t input, std::byte *target) const {
  const Part &part = partOf(record);
  const Column &column = part.columns[input];
  const std::byte *from =
      column.data + (record - part.firstRecord) * column.recordBytes;
  if (!column.table.empty()) {
    auto *to = reinterpret_cast<float *>(target);
    for (int64_t i = 0; i < column.recordBytes; i += column.channelSize) {
      int64_t channel = i / column.channelSize % column.channels;
      const float *table = column.table.data() + channel * 256;
      for (int64_t j = i; j < i + column.channelSize; ++j)
        to[j] = table[std::to_integer<uint8_t>(from[j])];
    }
  } else if (program.inputs[input].tensor.type == MGQ_BOOL) {
    for (int64_t i = 0; i < column.recordBytes; ++i)
      target[i] = std::byte{from[i] != std::byte{0}};
  } else if (column.recordBytes) {
    memcpy(target, from, column.recordBytes);
  }
  part.file.release(from, from + column.recordBytes);
}

uint64_t DataReader::hash(int64_t record, int32_t input, uint64_t hash) const {
  const Part &part = partOf(record);
  const Column &column = part.columns[input];
  const std::byte *from =
      column.data + (record - part.firstRecord) * column.recordBytes;
  hash = mgq_hash(hash, column.table.data(),
                  static_cast<int64_t>(column.table.size() * sizeof(float)));
  return mgq_hash(hash, from, column.recordBytes);
}

RecordOrder::RecordOrder(int64_t records, int64_t perStep, bool shuffle,
                         uint64_t seed, const char *units)
    : perStep(perStep), epochSteps(records / perStep), shuffle(shuffle),
      seed(seed) {
  if (records < perStep)
    fail("the data has {} records, fewer than the {} {} of a step", records,
         perStep, units);
  if (records > UINT32_MAX)
    fail("the data has {} records, at most {} are supported", records,
         UINT32_MAX);
  if (shuffle)
    order.resize(records);
}

bool RecordOrder::isFree(int64_t step) const {
  return !shuffle || step / epochSteps == orderEpoch;
}

int64_t RecordOrder::recordOf(int64_t step, int64_t index) {
  int64_t epoch = step / epochSteps;
  int64_t position = step % epochSteps * perStep + index;
  if (!shuffle)
    return position;
  if (epoch != orderEpoch) {
    shufflePermutation(order, seed, epoch);
    orderEpoch = epoch;
  }
  return order[position];
}
