"""Programs that use more memory than they may, where one who looks might not look."""

HIDINGS = {
    "hiding from the meter": """
import ctypes, os, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
for _ in range(5):
    if os.fork() == 0:
        x = bytearray(100 << 20); time.sleep(60); os._exit(0)
for _ in range(5): os.wait()
""",
    "threads whose first has ended": """
import ctypes, os, threading, time
def hold():
    time.sleep(0.1)
    kept = bytearray(100 << 20)
    time.sleep(3)
    os._exit(0)
for _ in range(5):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).pthread_exit(None)
for _ in range(5): os.wait()
""",
    "children of another thread than the first": """
import os, threading, time
def hold():
    for _ in range(5):
        if os.fork() == 0:
            x = bytearray(100 << 20); time.sleep(3); os._exit(0)
    for _ in range(5): os.wait()
threading.Thread(target=hold).start()
""",
    "tables of pages that are empty": """
import ctypes, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
size, readable, private, no_huge_pages = 300 << 30, 1, 0x4022, 15
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
at = libc.mmap(None, ctypes.c_size_t(size), readable, private, -1, 0)
libc.madvise(at, size, no_huge_pages)
pages = (ctypes.c_char * size).from_address(at)
for each in range(0, size, 2 << 20): pages[each]
time.sleep(1)
""",
}
