//===- Tensors.cpp - Stored tensors: their home in a file, their value ----===//
//
// Weights are referred to by file, offset and length. For tensors inside the
// model file the offset comes from scanning protobuf's wire format
// (protobuf.dev/programming-guides/encoding): parsing gives no positions.
//
//===----------------------------------------------------------------------===//

#include "frontends/onnx/Tensors.h"

#include "dialects/NN/NNElements.h"
#include "frontends/onnx/Node.h"

#include "mlir/IR/Diagnostics.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include <google/protobuf/io/coded_stream.h>

using namespace mlir;
using namespace mgq::onnx;
namespace path = llvm::sys::path;
namespace fs = llvm::sys::fs;
using ::onnx::TensorProto;

//===----------------------------------------------------------------------===//
// Wire format
//===----------------------------------------------------------------------===//

namespace {
/// A message on the wire, read field by field.
class WireReader {
public:
  WireReader(StringRef bytes, int64_t base) : bytes(bytes), base(base) {}

  /// Moves to the next field; false at the end or on damaged data.
  bool next() {
    uint64_t tag;
    if (at >= bytes.size() || !varint(tag))
      return false;
    field = tag >> 3;
    isBytes = false;
    switch (tag & 7) {
    case 0:
      return varint(tag);
    case 1:
      return skip(8);
    case 2:
      if (!varint(tag))
        return false;
      isBytes = true;
      start = at;
      return skip(tag);
    case 5:
      return skip(4);
    default:
      return false;
    }
  }
  uint64_t number() const { return field; }
  /// Whether the field is a message or bytes; then its content.
  bool hasContent() const { return isBytes; }
  WireReader content() const {
    return {bytes.slice(start, at), base + static_cast<int64_t>(start)};
  }
  int64_t offset() const { return base; }
  int64_t size() const { return bytes.size(); }

private:
  bool varint(uint64_t &value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && at < bytes.size(); shift += 7) {
      uint8_t byte = bytes[at++];
      value |= uint64_t(byte & 127) << shift;
      if (byte < 128)
        return true;
    }
    return false;
  }
  bool skip(uint64_t count) {
    if (count > bytes.size() - at)
      return false;
    at += count;
    return true;
  }

  StringRef bytes;
  int64_t base;
  size_t at = 0, start = 0;
  uint64_t field = 0;
  bool isBytes = false;
};
} // namespace

/// Byte ranges of the initializers' raw_data, packed float_data or double_data.
static std::vector<std::pair<int64_t, int64_t>> scanRawData(StringRef bytes) {
  using ::onnx::GraphProto;
  using ::onnx::ModelProto;
  std::vector<std::pair<int64_t, int64_t>> result;
  for (WireReader model(bytes, 0); model.next();) {
    if (model.number() != ModelProto::kGraphFieldNumber || !model.hasContent())
      continue;
    for (WireReader graph = model.content(); graph.next();) {
      if (graph.number() != GraphProto::kInitializerFieldNumber ||
          !graph.hasContent())
        continue;
      std::pair<int64_t, int64_t> range(0, 0);
      int chunks = 0;
      for (WireReader tensor = graph.content(); tensor.next();) {
        if ((tensor.number() == TensorProto::kRawDataFieldNumber ||
             tensor.number() == TensorProto::kFloatDataFieldNumber ||
             tensor.number() == TensorProto::kDoubleDataFieldNumber)) {
          ++chunks;
          if (tensor.hasContent())
            range = {tensor.content().offset(), tensor.content().size()};
        }
      }
      // A packed field may be cut into chunks; then there is no one range.
      if (chunks != 1)
        range = {0, 0};
      result.push_back(range);
    }
  }
  return result;
}

LogicalResult ModelFiles::open(Location loc, StringRef modelPath,
                               ::onnx::ModelProto &model) {
  folder = path::parent_path(modelPath).str();
  if (folder.empty())
    folder = ".";
  name = path::filename(modelPath).str();
  auto file = llvm::MemoryBuffer::getFile(modelPath, /*IsText=*/false,
                                          /*RequiresNullTerminator=*/false);
  if (!file)
    return emitError(loc) << "cannot read the model: "
                          << file.getError().message();
  buffer = std::move(*file);
  if (buffer->getBufferSize() == 0)
    return emitError(loc) << "the model file is empty";
  if (buffer->getBufferSize() > INT32_MAX)
    return emitError(loc) << "the model file is larger than 2 GiB; store its "
                             "tensors as external data";
  auto *data = reinterpret_cast<const uint8_t *>(buffer->getBufferStart());
  int size = buffer->getBufferSize();
  google::protobuf::SetLogHandler(nullptr);
  google::protobuf::io::CodedInputStream stream(data, size);
  stream.SetTotalBytesLimit(INT32_MAX);
  bool whole = model.ParseFromCodedStream(&stream) &&
               stream.ConsumedEntireMessage() &&
               stream.CurrentPosition() == size;
  if (!whole || !model.has_graph())
    return emitError(loc) << "not an ONNX model, or a damaged or truncated one";
  rawData = scanRawData(buffer->getBuffer());
  return success();
}

//===----------------------------------------------------------------------===//
// Types and sizes
//===----------------------------------------------------------------------===//

FailureOr<RankedTensorType> mgq::onnx::tensorType(Location loc,
                                                  const TensorProto &tensor) {
  Type element = elementTypeOf(tensor.data_type(), loc.getContext());
  if (!element) {
    std::string name = TensorProto::DataType_IsValid(tensor.data_type())
                           ? TensorProto::DataType_Name(
                                 TensorProto::DataType(tensor.data_type()))
                           : std::to_string(tensor.data_type());
    return emitError(loc) << "not supported yet: tensor '" << tensor.name()
                          << "' of element type " << name;
  }
  SmallVector<int64_t> shape(tensor.dims().begin(), tensor.dims().end());
  if (!isSaneShape(shape) || ShapedType::isDynamicShape(shape)) {
    InFlightDiagnostic diag = emitError(loc) << "tensor '" << tensor.name()
                                             << "' has the impossible shape ";
    llvm::interleave(shape, diag, "x");
    return diag;
  }
  return RankedTensorType::get(shape, element);
}

/// Bytes of a tensor in a file; booleans take one each.
static int64_t byteSize(RankedTensorType type) {
  unsigned bits = type.getElementType().getIntOrFloatBitWidth();
  return type.getNumElements() * std::max(bits / 8, 1u);
}

//===----------------------------------------------------------------------===//
// External data
//===----------------------------------------------------------------------===//

/// Whether a location stays in the model's folder by its text.
static bool staysInside(StringRef location) {
  if (location.empty() || path::is_absolute(location))
    return false;
  return llvm::none_of(
      llvm::make_range(path::begin(location), path::end(location)),
      [](StringRef part) { return part == ".."; });
}

/// Reads a count of bytes from an external_data entry.
static bool parseCount(const std::string &text, int64_t &value) {
  return !StringRef(text).getAsInteger(10, value) && value >= 0;
}

FailureOr<Home> ModelFiles::externalHome(Location loc,
                                         const TensorProto &tensor) const {
  auto type = tensorType(loc, tensor);
  if (failed(type))
    return failure();
  auto error = [&]() {
    return emitError(loc) << "external data of tensor '" << tensor.name()
                          << "' ";
  };
  int64_t needed = byteSize(*type);
  Home home{"", 0, needed};
  for (const auto &entry : tensor.external_data()) {
    if (entry.key() == "location")
      home.file = entry.value();
    else if (entry.key() == "offset" && !parseCount(entry.value(), home.offset))
      return error() << "has a bad offset '" << entry.value() << "'";
    else if (entry.key() == "length" && !parseCount(entry.value(), home.length))
      return error() << "has a bad length '" << entry.value() << "'";
  }
  if (home.length != needed)
    return error() << "has " << home.length << " bytes, expected " << needed;
  if (!staysInside(home.file))
    return error() << "is at '" << home.file << "', outside the model's folder";
  SmallString<256> full(folder);
  path::append(full, home.file);
  fs::file_status status;
  if (fs::status(full, status))
    return home; // absent: found and checked when the program runs
  // A symbolic link may lead out of the folder.
  SmallString<256> realFolder, realFile;
  if (fs::real_path(folder, realFolder) || fs::real_path(full, realFile))
    return error() << "in '" << home.file << "' cannot be opened";
  if (!realFolder.ends_with("/"))
    realFolder += "/";
  if (!StringRef(realFile).starts_with(realFolder))
    return error() << "is at '" << home.file
                   << "', a link that leads outside the model's folder";
  if (!fs::is_regular_file(status))
    return error() << "is at '" << home.file << "', which is not a file";
  int64_t size = status.getSize();
  if (home.offset > size || needed > size - home.offset)
    return error() << "needs bytes " << home.offset << " to "
                   << home.offset + needed << " of '" << home.file
                   << "', which has " << size;
  return home;
}

FailureOr<std::optional<Home>>
ModelFiles::home(Location loc, const TensorProto &tensor, int64_t index) const {
  if (tensor.data_location() == TensorProto::EXTERNAL) {
    auto home = externalHome(loc, tensor);
    if (failed(home))
      return failure();
    return std::optional<Home>(*home);
  }
  auto type = tensorType(loc, tensor);
  if (failed(type))
    return failure();
  auto [offset, length] = rawData[index];
  bool isRaw = tensor.has_raw_data() ||
               tensor.data_type() == TensorProto::FLOAT ||
               tensor.data_type() == TensorProto::DOUBLE;
  if (!isRaw || length == 0)
    return std::optional<Home>();
  if (length != byteSize(*type))
    return emitError(loc) << "tensor '" << tensor.name() << "' has " << length
                          << " bytes, expected " << byteSize(*type);
  return std::optional<Home>(Home{name, offset, length});
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

/// A constant of little-endian bytes as ONNX stores them.
static DenseElementsAttr fromBytes(RankedTensorType type, StringRef bytes) {
  if (type.getElementType().isInteger(1)) {
    SmallVector<bool> values;
    for (char byte : bytes)
      values.push_back(byte != 0);
    return DenseElementsAttr::get(type, values);
  }
  return DenseElementsAttr::getFromRawBuffer(
      type, ArrayRef(bytes.data(), bytes.size()));
}

/// A constant of the typed fields of a TensorProto, one word per element.
static DenseElementsAttr fromFields(RankedTensorType type,
                                    const TensorProto &tensor) {
  mgq::nn::Elements elements{type, false, {}};
  auto take = [&](const auto &field) {
    for (auto value : field)
      elements.words.push_back(static_cast<uint64_t>(value));
  };
  Type element = type.getElementType();
  if (auto floating = dyn_cast<FloatType>(element)) {
    for (float value : tensor.float_data())
      elements.words.push_back(mgq::nn::wordOfFloat(value, floating));
    for (double value : tensor.double_data())
      elements.words.push_back(mgq::nn::wordOfFloat(value, floating));
    take(tensor.int32_data()); // the bits of f16 and bf16
  } else {
    take(tensor.int32_data());
    take(tensor.int64_data());
    take(tensor.uint64_data());
  }
  if (static_cast<int64_t>(elements.words.size()) != type.getNumElements())
    return {};
  if (element.isInteger(1))
    for (uint64_t &word : elements.words)
      word = word != 0;
  return mgq::nn::writeElements(elements);
}

FailureOr<DenseElementsAttr>
ModelFiles::value(Location loc, const TensorProto &tensor) const {
  auto type = tensorType(loc, tensor);
  if (failed(type))
    return failure();
  if (tensor.data_location() == TensorProto::EXTERNAL) {
    auto home = externalHome(loc, tensor);
    if (failed(home))
      return failure();
    SmallString<256> full(folder);
    path::append(full, home->file);
    auto file =
        llvm::MemoryBuffer::getFileSlice(full, home->length, home->offset);
    if (!file)
      return emitError(loc) << "external data of tensor '" << tensor.name()
                            << "' is needed to compile: cannot read '"
                            << home->file << "': " << file.getError().message();
    return fromBytes(*type, (*file)->getBuffer());
  }
  return inlineValue(loc, tensor);
}

FailureOr<DenseElementsAttr> mgq::onnx::inlineValue(Location loc,
                                                    const TensorProto &tensor) {
  auto type = tensorType(loc, tensor);
  if (failed(type))
    return failure();
  if (tensor.data_location() == TensorProto::EXTERNAL)
    return emitError(loc) << "not supported yet: external data in an attribute";
  if (tensor.has_raw_data()) {
    if (static_cast<int64_t>(tensor.raw_data().size()) != byteSize(*type))
      return emitError(loc) << "tensor '" << tensor.name() << "' has "
                            << tensor.raw_data().size() << " bytes, expected "
                            << byteSize(*type);
    return fromBytes(*type, tensor.raw_data());
  }
  DenseElementsAttr attr = fromFields(*type, tensor);
  if (!attr)
    return emitError(loc) << "tensor '" << tensor.name()
                          << "' has not the number of values of its shape, "
                          << type->getNumElements();
  return attr;
}
