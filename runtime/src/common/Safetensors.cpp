//===- Safetensors.cpp - Reader and writer of safetensors files -----------===//

#include "runtime/src/common/Safetensors.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/common/Transfer.h"
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

using namespace mgq::rt;
using nlohmann::json;

// The format's own limit.
static constexpr uint64_t maxHeaderBytes = 100'000'000;

namespace {
/// Notes a key that occurs twice in one object (json would keep the last), and
/// objects nested so deeply that parsing them recursively is not safe.
struct HeaderCheck {
  std::vector<std::set<std::string>> keys;
  std::string problem;

  bool operator()(int depth, json::parse_event_t event, json &value) {
    if (depth > 8 && problem.empty())
      problem = "its header is nested too deeply";
    if (event == json::parse_event_t::object_start)
      keys.emplace_back();
    else if (event == json::parse_event_t::object_end)
      keys.pop_back();
    else if (event == json::parse_event_t::key &&
             !keys.back().insert(value.get<std::string>()).second &&
             problem.empty())
      problem = fmt::format("its header has the key '{}' twice",
                            value.get<std::string>());
    return true;
  }
};
} // namespace

SafetensorsFile::SafetensorsFile(const std::string &path) : file(path) {
  parse();
}

const TensorView *SafetensorsFile::find(const std::string &name) const {
  auto it = views.find(name);
  return it == views.end() ? nullptr : &it->second;
}

/// Reads an entry's "shape" or "data_offsets".
static std::optional<Shape> unsignedList(const json &entry, const char *key) {
  auto it = entry.find(key);
  if (it == entry.end() || !it->is_array())
    return std::nullopt;
  Shape list;
  for (const json &item : *it) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT64_MAX)
      return std::nullopt;
    list.push_back(item.get<int64_t>());
  }
  return list;
}

/// One entry of the header, checked against `dataBytes` bytes of data.
static TensorView parseEntry(const std::string &path, const std::string &name,
                             const json &entry, const std::byte *data,
                             int64_t dataBytes) {
  auto bad = [&](const std::string &what) {
    fail("'{}' is not a valid safetensors file: tensor '{}' {}", path, name,
         what);
  };
  if (!entry.is_object() || !entry.contains("dtype") ||
      !entry["dtype"].is_string())
    bad("has no dtype");
  std::string typeText = entry["dtype"].get<std::string>();
  std::optional<mgq_type> type = typeFromName(typeText);
  if (!type)
    fail("'{}': tensor '{}' has type {}, not supported yet", path, name,
         typeText);
  std::optional<Shape> shape = unsignedList(entry, "shape");
  std::optional<Shape> range = unsignedList(entry, "data_offsets");
  if (!shape)
    bad("has no valid shape");
  if (!range || range->size() != 2)
    bad("has no valid data_offsets");
  int64_t begin = (*range)[0], end = (*range)[1];
  if (begin > end)
    bad(fmt::format("has data_offsets [{}, {}]", begin, end));
  if (end > dataBytes)
    fail("'{}' is truncated: tensor '{}' ends at byte {} of the data, the file "
         "has {}",
         path, name, end, dataBytes);
  std::optional<int64_t> count = elementCount(*shape);
  int64_t bytes = 0;
  if (!count || __builtin_mul_overflow(*count, typeBytes(*type), &bytes) ||
      bytes != end - begin)
    bad(fmt::format("has {} bytes, its shape {} of {} does not", end - begin,
                    shapeText(*shape), typeText));
  return {*type, std::move(*shape), data + begin, bytes};
}

void SafetensorsFile::parse() {
  const std::string &path = file.path();
  uint64_t headerBytes = 0;
  if (file.size() == 0)
    fail("'{}' is empty", path);
  if (file.size() < 8)
    fail("'{}' is not a safetensors file: {} bytes", path, file.size());
  memcpy(&headerBytes, file.data(), 8);
  if (headerBytes > maxHeaderBytes)
    fail("'{}' is not a safetensors file: header length {}", path, headerBytes);
  if (headerBytes > static_cast<uint64_t>(file.size() - 8))
    fail("'{}' is truncated or not a safetensors file: header length {}, the "
         "file has {} bytes",
         path, headerBytes, file.size());

  const char *text = reinterpret_cast<const char *>(file.data()) + 8;
  HeaderCheck check;
  json header = json::parse(
      text, text + headerBytes,
      [&](int depth, json::parse_event_t event, json &value) {
        return check(depth, event, value);
      },
      /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object())
    fail("'{}' is not a safetensors file: its header is not a JSON object",
         path);
  if (!check.problem.empty())
    fail("'{}' is not a valid safetensors file: {}", path, check.problem);

  const std::byte *data = file.data() + 8 + headerBytes;
  int64_t dataBytes = file.size() - 8 - static_cast<int64_t>(headerBytes);
  for (const auto &[name, entry] : header.items()) {
    if (name != "__metadata__") {
      views.emplace(name, parseEntry(path, name, entry, data, dataBytes));
      continue;
    }
    if (!entry.is_object())
      fail("'{}' is not a valid safetensors file: __metadata__ is not an "
           "object",
           path);
    for (const auto &[key, value] : entry.items()) {
      if (!value.is_string())
        fail("'{}' is not a valid safetensors file: metadata '{}' is not text",
             path, key);
      pairs.emplace(key, value.get<std::string>());
    }
  }

  // The format asks for ranges without overlap or gap.
  std::vector<const std::pair<const std::string, TensorView> *> order;
  for (const auto &view : views)
    order.push_back(&view);
  std::sort(order.begin(), order.end(), [](auto *a, auto *b) {
    return std::make_pair(a->second.data, a->second.bytes) <
           std::make_pair(b->second.data, b->second.bytes);
  });
  const std::byte *end = data;
  for (const auto *view : order) {
    if (view->second.data != end)
      fail("'{}' is not a valid safetensors file: tensor '{}' {}", path,
           view->first,
           view->second.data < end ? "overlaps another" : "follows a gap");
    end += view->second.bytes;
  }
  if (end != data + dataBytes)
    fail("'{}' is not a valid safetensors file: {} bytes after the last tensor",
         path, data + dataBytes - end);
}

static constexpr int64_t pieceElements = Transfer::pieceElements;

/// Writes the elements of a tensor in its type, piece by piece.
static void writePieces(AtomicFile &file, const TensorSource &tensor) {
  int64_t count = elementCount(tensor.shape).value();
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (int64_t begin = 0, size; begin < count; begin += size) {
    size = std::min(pieceElements, count - begin);
    values.resize(std::max<size_t>(values.size(), size));
    const float *piece = values.data();
    if (tensor.fetch)
      tensor.fetch(begin, size, values.data());
    else if (tensor.permutation)
      transpose(tensor.data, values.data(), tensor.shape, tensor.permutation,
                begin, size);
    else
      piece = tensor.data + begin;
    bytes.resize(size * typeBytes(tensor.type));
    convertFromFloat(tensor.type, piece, bytes.data(), size);
    file.write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
}

void mgq::rt::writeSafetensors(
    const std::string &path, const std::vector<TensorSource> &tensors,
    const std::map<std::string, std::string> &metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty())
    header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorSource &tensor : tensors) {
    int64_t bytes = elementCount(tensor.shape).value() * typeBytes(tensor.type);
    header[tensor.name] = {
        {"dtype", typeName(tensor.type)},
        {"shape", transposedShape(tensor.shape, tensor.permutation)},
        {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text =
      header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' '); // Data starts aligned.

  AtomicFile file(path);
  uint64_t length = text.size();
  file.write(&length, 8);
  file.write(text);
  for (const TensorSource &tensor : tensors)
    writePieces(file, tensor);
  file.commit();
}
