# Finds what compiling for CUDA needs: ptxas, libdevice and headers, in a toolkit
# or in the wheels that scripts/setup.sh --cuda installs. No compiler of CUDA
# and no library of it is needed to build.
#
#   CUDA_HOME, in the environment or as a cache variable, else /usr/local/cuda;
#   build/venv/lib/python*/site-packages/nvidia
#
# With MGQ_CUDA off nothing is looked for.
#
# Sets
#   MGQ_CUDA_HEADERS  folders with cuda.h, cublasLt.h, nccl.h; empty: not found
#   MGQ_CUDA_TOOLKIT  folder with bin/ptxas and nvvm/libdevice/libdevice.10.bc;
#                     empty: not found
#   CudaToolkit_FOUND all of it

option(MGQ_CUDA "Compile for CUDA, where what that needs is found" ON)
set(CUDA_HOME "$ENV{CUDA_HOME}" CACHE PATH "CUDA toolkit to use")
file(GLOB wheels "${PROJECT_BINARY_DIR}/venv/lib/python*/site-packages/nvidia")
set(roots "")
if(MGQ_CUDA AND CUDA_HOME)
  list(APPEND roots ${CUDA_HOME})
elseif(MGQ_CUDA)
  list(APPEND roots /usr/local/cuda)
endif()
if(MGQ_CUDA)
  foreach(wheel ${wheels})
    list(APPEND roots ${wheel}/cu13)
  endforeach()
endif()

set(MGQ_CUDA_TOOLKIT "")
foreach(root ${roots})
  if(NOT MGQ_CUDA_TOOLKIT AND EXISTS ${root}/bin/ptxas
      AND EXISTS ${root}/nvvm/libdevice/libdevice.10.bc)
    set(MGQ_CUDA_TOOLKIT ${root})
  endif()
endforeach()

# NCCL has a wheel, and often a folder, of its own.
set(MGQ_CUDA_HEADERS "")
foreach(root ${roots})
  if(NOT MGQ_CUDA_HEADERS AND EXISTS ${root}/include/cuda.h
      AND EXISTS ${root}/include/cublasLt.h
      AND EXISTS ${root}/include/crt/host_defines.h)
    find_path(nccl nccl.h NO_CACHE NO_DEFAULT_PATH
      PATHS ${root}/include ${root}/../nccl/include ${wheels}/nccl/include)
    if(nccl)
      string(REGEX REPLACE "/$" "" nccl ${nccl})
      set(MGQ_CUDA_HEADERS ${root}/include ${nccl})
      list(REMOVE_DUPLICATES MGQ_CUDA_HEADERS)
    endif()
    unset(nccl)
  endif()
endforeach()

set(missing "")
if(NOT MGQ_CUDA_TOOLKIT)
  list(APPEND missing "ptxas and libdevice")
endif()
if(NOT MGQ_CUDA_HEADERS)
  list(APPEND missing "headers (cuda.h, cublasLt.h, nccl.h)")
endif()
if(missing)
  set(CudaToolkit_FOUND FALSE)
  string(REPLACE ";" ", " missing "${missing}")
  if(NOT CudaToolkit_FIND_QUIETLY)
    message(STATUS "CUDA: no ${missing}; scripts/setup.sh --cuda installs them. "
      "What needs them is left out")
  endif()
else()
  set(CudaToolkit_FOUND TRUE)
  if(NOT CudaToolkit_FIND_QUIETLY)
    message(STATUS "CUDA: ${MGQ_CUDA_TOOLKIT}, headers in ${MGQ_CUDA_HEADERS}")
  endif()
endif()

# The cudnn frontend and cuDNN's headers, which libmgq_cudnn.so is made with.
# Sets MGQ_CUDNN_HEADERS: folders; empty: not found. MGQ_CUDNN_FRONTEND, a cache
# variable, says where cudnn_frontend.h is if not in build/venv.
set(MGQ_CUDNN_FRONTEND "" CACHE PATH "Folder of cudnn_frontend.h")
set(MGQ_CUDNN_HEADERS "")
if(MGQ_CUDA_HEADERS)
  file(GLOB packages "${PROJECT_BINARY_DIR}/venv/lib/python*/site-packages")
  set(frontends ${MGQ_CUDNN_FRONTEND})
  set(cudnns ${MGQ_CUDA_HEADERS})
  foreach(package ${packages})
    list(APPEND frontends ${package}/include)
    list(APPEND cudnns ${package}/nvidia/cudnn/include)
  endforeach()
  find_path(frontend cudnn_frontend.h NO_CACHE NO_DEFAULT_PATH
    PATHS ${frontends})
  find_path(cudnn cudnn.h NO_CACHE NO_DEFAULT_PATH PATHS ${cudnns})
  if(frontend AND cudnn)
    set(MGQ_CUDNN_HEADERS ${frontend} ${cudnn})
  elseif(NOT CudaToolkit_FIND_QUIETLY)
    message(STATUS "cuDNN: no headers (cudnn_frontend.h, cudnn.h); "
      "scripts/setup.sh --cuda installs them. Programs compute attention by "
      "kernels of their own")
  endif()
  unset(frontend)
  unset(cudnn)
endif()
