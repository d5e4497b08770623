//===- Safetensors.cpp - Tensors in files, for mgq-run --------------------===//
//
// Format: u64 length of a JSON header, the header (name -> dtype, shape,
// data_offsets), the bytes.
//
//===----------------------------------------------------------------------===//

#include "compiler/Driver/Safetensors.h"

#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "llvm/Support/Endian.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

using namespace mlir;
using namespace mgq;

template <typename... Args>
static llvm::Error bad(StringRef path, const char *format,
                       const Args &...args) {
  return llvm::createStringError((path + ": ").str() +
                                 llvm::formatv(format, args...).str());
}

static Type parseType(MLIRContext *context, StringRef name) {
  Builder b(context);
  auto integer = [&](unsigned width, bool isUnsigned) -> Type {
    return IntegerType::get(context, width,
                            isUnsigned ? IntegerType::Unsigned
                                       : IntegerType::Signless);
  };
  if (name == "F64")
    return b.getF64Type();
  if (name == "F32")
    return b.getF32Type();
  if (name == "F16")
    return b.getF16Type();
  if (name == "BF16")
    return b.getBF16Type();
  if (name == "BOOL")
    return b.getI1Type();
  unsigned width;
  if (name.size() >= 2 && (name[0] == 'I' || name[0] == 'U') &&
      !name.drop_front().getAsInteger(10, width) &&
      llvm::is_contained({8u, 16u, 32u, 64u}, width))
    return integer(width, name[0] == 'U');
  return nullptr;
}

static std::string typeName(Type type) {
  if (type.isInteger(1))
    return "BOOL";
  if (auto integer = dyn_cast<IntegerType>(type))
    return (integer.isUnsigned() ? "U" : "I") +
           std::to_string(integer.getWidth());
  return type.isF64()   ? "F64"
         : type.isF32() ? "F32"
         : type.isF16() ? "F16"
                        : "BF16";
}

int64_t mgq::tensorBytes(RankedTensorType type) {
  int64_t bits = std::max(8u, type.getElementType().getIntOrFloatBitWidth());
  return type.getNumElements() * bits / 8;
}

/// One entry of the header.
static llvm::Expected<FileTensor> readEntry(MLIRContext *context,
                                            StringRef path, StringRef name,
                                            const llvm::json::Object &entry,
                                            llvm::ArrayRef<char> data) {
  auto dtype = entry.getString("dtype");
  const auto *shape = entry.getArray("shape");
  const auto *offsets = entry.getArray("data_offsets");
  if (!dtype || !shape || !offsets || offsets->size() != 2)
    return bad(path, "tensor {0} lacks dtype, shape or data_offsets", name);
  Type element = parseType(context, *dtype);
  if (!element)
    return bad(path, "tensor {0} has unknown type {1}", name, *dtype);
  SmallVector<int64_t> dims;
  for (const llvm::json::Value &dim : *shape) {
    auto size = dim.getAsInteger();
    if (!size || *size < 0)
      return bad(path, "tensor {0} has a bad shape", name);
    dims.push_back(*size);
  }
  auto type = RankedTensorType::get(dims, element);
  auto begin = (*offsets)[0].getAsInteger(), end = (*offsets)[1].getAsInteger();
  if (!begin || !end || *begin < 0 || *end < *begin ||
      *end > static_cast<int64_t>(data.size()))
    return bad(path, "tensor {0} lies outside the file", name);
  if (*end - *begin != tensorBytes(type))
    return bad(path, "tensor {0} has {1} bytes, expected {2}", name,
               *end - *begin, tensorBytes(type));
  return FileTensor{type, data.slice(*begin, *end - *begin)};
}

llvm::Expected<SafetensorsFile> mgq::readSafetensors(MLIRContext *context,
                                                     StringRef path) {
  auto buffer = llvm::MemoryBuffer::getFile(path, /*IsText=*/false,
                                            /*RequiresNullTerminator=*/false);
  if (!buffer)
    return bad(path, "{0}", buffer.getError().message());
  StringRef bytes = (*buffer)->getBuffer();
  if (bytes.size() < 8)
    return bad(path, "is too short for a safetensors file");
  uint64_t length = llvm::support::endian::read64le(bytes.data());
  if (length > bytes.size() - 8)
    return bad(path, "is truncated: the header has {0} bytes", length);
  auto header = llvm::json::parse(bytes.substr(8, length));
  if (!header)
    return bad(path, "has a damaged header: {0}",
               llvm::toString(header.takeError()));
  const llvm::json::Object *entries = header->getAsObject();
  if (!entries)
    return bad(path, "has a damaged header");

  SafetensorsFile file;
  llvm::ArrayRef<char> data(bytes.data() + 8 + length,
                            bytes.size() - 8 - length);
  for (const auto &[key, value] : *entries) {
    if (StringRef(key) == "__metadata__")
      continue;
    const llvm::json::Object *entry = value.getAsObject();
    if (!entry)
      return bad(path, "has a damaged header at {0}", StringRef(key));
    auto tensor = readEntry(context, path, key, *entry, data);
    if (!tensor)
      return tensor.takeError();
    file.tensors[StringRef(key).str()] = *tensor;
  }
  file.buffer = std::move(*buffer);
  return file;
}

llvm::Error
mgq::writeSafetensors(StringRef path,
                      const std::map<std::string, FileTensor> &tensors) {
  llvm::json::Object header;
  int64_t offset = 0;
  for (const auto &[name, tensor] : tensors) {
    int64_t end = offset + tensorBytes(tensor.type);
    header[name] =
        llvm::json::Object{{"dtype", typeName(tensor.type.getElementType())},
                           {"shape", llvm::json::Array(tensor.type.getShape())},
                           {"data_offsets", llvm::json::Array{offset, end}}};
    offset = end;
  }
  std::string text = llvm::formatv("{0}", llvm::json::Value(std::move(header)));
  text.resize((text.size() + 7) / 8 * 8, ' ');

  std::string partial = (path + ".partial").str();
  std::error_code code;
  llvm::raw_fd_ostream os(partial, code);
  if (code)
    return bad(path, "cannot be written: {0}", code.message());
  char length[8];
  llvm::support::endian::write64le(length, text.size());
  os.write(length, 8);
  os << text;
  for (const auto &entry : tensors)
    os.write(entry.second.bytes.data(), tensorBytes(entry.second.type));
  os.close();
  if (os.has_error()) {
    std::string message = os.error().message();
    os.clear_error();
    llvm::sys::fs::remove(partial);
    return bad(path, "cannot be written: {0}", message);
  }
  if (std::error_code failure = llvm::sys::fs::rename(partial, path)) {
    llvm::sys::fs::remove(partial);
    return bad(path, "cannot be written: {0}", failure.message());
  }
  return llvm::Error::success();
}
