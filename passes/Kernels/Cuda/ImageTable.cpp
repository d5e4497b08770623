//===- ImageTable.cpp - mgq_cuda_module_table -----------------------------===//
//
// Structs of rt_cuda.h as constants of the LLVM dialect, one function each.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/ImageTable.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "runtime/include/rt_cuda.h"

#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace mgq::kernels;

namespace {
/// Makes constants at the end of a module.
class TableBuilder {
public:
  explicit TableBuilder(ModuleOp module)
      : b(OpBuilder::atBlockEnd(module.getBody())), loc(module.getLoc()),
        pointer(LLVM::LLVMPointerType::get(module.getContext())),
        i32(b.getI32Type()), i64(b.getI64Type()) {}

  /// A value of a constant: a number, or the address of a global (null: none).
  struct Field {
    Field(int32_t value) : value(value) {}
    Field(int64_t value) : value(value), isWide(true) {}
    Field(LLVM::GlobalOp global) : global(global), isAddress(true) {}
    Field(LLVM::LLVMFuncOp function) : function(function), isAddress(true) {}
    int64_t value = 0;
    LLVM::GlobalOp global;
    LLVM::LLVMFuncOp function;
    bool isWide = false, isAddress = false;
  };
  using Struct = SmallVector<Field>;

  LLVM::GlobalOp bytes(StringRef data, unsigned alignment);
  LLVM::GlobalOp text(StringRef data) {
    return bytes((data + StringRef("\0", 1)).str(), 1);
  }
  /// An array of structs of the same fields; null if there is none.
  LLVM::GlobalOp array(ArrayRef<Struct> elements);
  /// The one with an external name.
  void table(StringRef name, const Struct &fields);

private:
  LLVM::LLVMStructType typeOf(const Struct &fields);
  Value valueOf(const Struct &fields);
  LLVM::GlobalOp global(StringRef name, Type type, LLVM::Linkage linkage,
                        llvm::function_ref<Value()> value);
  std::string nextName() { return "cuda." + std::to_string(next++); }

  OpBuilder b;
  Location loc;
  Type pointer, i32, i64;
  int next = 0;
};
} // namespace

LLVM::GlobalOp TableBuilder::bytes(StringRef data, unsigned alignment) {
  auto type = LLVM::LLVMArrayType::get(b.getI8Type(), data.size());
  return LLVM::GlobalOp::create(b, loc, type, /*isConstant=*/true,
                                LLVM::Linkage::Private, nextName(),
                                b.getStringAttr(data), alignment);
}

LLVM::LLVMStructType TableBuilder::typeOf(const Struct &fields) {
  SmallVector<Type> types;
  for (const Field &field : fields)
    types.push_back(field.isAddress ? pointer : field.isWide ? i64 : i32);
  return LLVM::LLVMStructType::getLiteral(b.getContext(), types);
}

Value TableBuilder::valueOf(const Struct &fields) {
  Value result = LLVM::UndefOp::create(b, loc, typeOf(fields));
  for (auto [index, field] : llvm::enumerate(fields)) {
    Value value;
    if (!field.isAddress)
      value = LLVM::ConstantOp::create(
          b, loc, IntegerAttr::get(field.isWide ? i64 : i32, field.value));
    else if (field.global)
      value = LLVM::AddressOfOp::create(b, loc, field.global);
    else if (field.function)
      value = LLVM::AddressOfOp::create(b, loc, field.function);
    else
      value = LLVM::ZeroOp::create(b, loc, pointer);
    result = LLVM::InsertValueOp::create(b, loc, result, value,
                                         ArrayRef<int64_t>(index));
  }
  return result;
}

LLVM::GlobalOp TableBuilder::global(StringRef name, Type type,
                                    LLVM::Linkage linkage,
                                    llvm::function_ref<Value()> value) {
  auto global = LLVM::GlobalOp::create(b, loc, type, /*isConstant=*/true,
                                       linkage, name, Attribute());
  OpBuilder::InsertionGuard guard(b);
  b.createBlock(&global.getInitializerRegion());
  LLVM::ReturnOp::create(b, loc, value());
  return global;
}

LLVM::GlobalOp TableBuilder::array(ArrayRef<Struct> elements) {
  if (elements.empty())
    return LLVM::GlobalOp();
  auto type =
      LLVM::LLVMArrayType::get(typeOf(elements.front()), elements.size());
  return global(nextName(), type, LLVM::Linkage::Private, [&] {
    Value result = LLVM::UndefOp::create(b, loc, type);
    for (auto [index, element] : llvm::enumerate(elements))
      result = LLVM::InsertValueOp::create(b, loc, result, valueOf(element),
                                           ArrayRef<int64_t>(index));
    return result;
  });
}

void TableBuilder::table(StringRef name, const Struct &fields) {
  global(name, typeOf(fields), LLVM::Linkage::External,
         [&] { return valueOf(fields); });
}

/// The address of a mgq_cuda_compression, if the module has one.
static LLVM::GlobalOp addCompression(TableBuilder &table, ModuleOp kernels) {
  auto function = [&](StringRef name) {
    return kernels.lookupSymbol<LLVM::LLVMFuncOp>(name);
  };
  if (!function("mgq_cuda_encode"))
    return LLVM::GlobalOp();
  TableBuilder::Struct fields = {function("mgq_cuda_encode"),
                                 function("mgq_cuda_combine"),
                                 function("mgq_cuda_decode")};
  return table.array(fields);
}

void mgq::kernels::addImageTable(ModuleOp kernels, gpu::GPUModuleOp device,
                                 ArrayRef<CudaImage> images) {
  TableBuilder table(kernels);
  using Struct = TableBuilder::Struct;
  SmallVector<Struct> imageFields, kernelFields, checkFields;
  for (const CudaImage &image : images) {
    // The end of a text is a zero byte.
    std::string data = image.isPtx ? image.code + '\0' : image.code;
    imageFields.push_back({image.sm, int32_t(image.isPtx),
                           table.bytes(data, /*alignment=*/64),
                           static_cast<int64_t>(image.code.size())});
  }
  for (auto kernel : device.getOps<LLVM::LLVMFuncOp>()) {
    auto threads = kernel->getAttrOfType<IntegerAttr>(kThreadsAttr);
    if (!threads)
      continue; // of libdevice
    int32_t checks = kernel->hasAttr(kReportsAttr);
    int32_t count = kernel.getNumArguments() - checks;
    kernelFields.push_back({table.text(kernel.getName()),
                            static_cast<int32_t>(threads.getInt()), count,
                            checks});
  }
  for (Attribute check : device->getAttrOfType<ArrayAttr>(kChecksAttr))
    checkFields.push_back({table.text(cast<StringAttr>(check).getValue())});
  auto size = [](ArrayRef<Struct> list) {
    return static_cast<int32_t>(list.size());
  };
  LLVM::GlobalOp imageArray = table.array(imageFields),
                 kernelArray = table.array(kernelFields),
                 checkArray = table.array(checkFields);
  table.table("mgq_cuda_module_table",
              {int32_t(MGQ_CUDA_ABI_VERSION), imageArray, size(imageFields),
               kernelArray, size(kernelFields), checkArray, size(checkFields),
               addCompression(table, kernels)});
}
