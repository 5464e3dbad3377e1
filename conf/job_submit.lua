-- SPDX-License-Identifier: Apache-2.0
-- Slurm: every job waits for an outside scheduler (koala wiki serve, koala schedule), users need do nothing.
--
-- Install: copy to the directory of slurm.conf, set JobSubmitPlugins=lua there (several: JobSubmitPlugins=lua,others),
-- run `scontrol reconfigure`. Undo: take the line out, reconfigure, `scontrol release` what still waits.
-- The scheduler must run as root, SlurmUser, or a Slurm operator that is named below.
--
-- A job comes in with priority 0, that is, held. Slurm shows that as the user's own hold (JobHeldUser), so such a job
-- is marked in its AdminComment. A user's own `--hold` or `scontrol hold` is kept as a word in the job's comment; the
-- user's release takes the word away, and the job waits for the scheduler again.

local MARK = "koala outside scheduler"
local USER_HOLD = "koala:hold"
local OPERATORS = { [0] = true } -- user ids that may start jobs; add that of SlurmUser and of koala's user
local LEAVE_ALONE = {} -- partitions with a scheduler of their own, such as { debug = true }

local function add_word(text)
   text = text or ""
   if string.find(text, USER_HOLD, 1, true) then
      return text
   end
   return text == "" and USER_HOLD or text .. " " .. USER_HOLD
end

local function without_word(text)
   local rest = string.gsub(text or "", " ?" .. USER_HOLD, "")
   return rest == "" and "released" or rest -- Slurm does not take an empty comment for a change
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   if job_desc.partition ~= nil and LEAVE_ALONE[job_desc.partition] then
      return slurm.SUCCESS
   end
   if job_desc.priority == 0 then
      job_desc.comment = add_word(job_desc.comment)
   end
   job_desc.priority = 0
   job_desc.admin_comment = MARK
   return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   if OPERATORS[modify_uid] or job_rec.admin_comment ~= MARK or job_desc.priority == slurm.NO_VAL then
      return slurm.SUCCESS
   end
   if job_desc.priority == 0 then
      job_desc.comment = add_word(job_rec.comment)
      return slurm.SUCCESS
   end
   if job_rec.comment ~= nil and string.find(job_rec.comment, USER_HOLD, 1, true) then
      job_desc.comment = without_word(job_rec.comment)
      job_desc.priority = 0
      return slurm.SUCCESS
   end
   slurm.log_user("this job waits for the site's scheduler, which starts it; nothing need be released")
   return slurm.ERROR
end

return slurm
